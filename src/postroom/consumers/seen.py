"""How long an inbox remembers: the window within which a repeat is known as one.

A message that the broker delivers again after its row was forgotten takes effect a second time. So
the span must be longer than anything the broker can do: a consumer warns where it can tell.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

from postroom import transactions
from postroom.clock import from_microseconds, host_microseconds
from postroom.consumers.trial import Bench
from postroom.engine.service import Service
from postroom.observer import Trouble
from postroom.record import short_error
from postroom.store import Store
from postroom.transactions.sql import load

_STEP = 1_000
_EVERY_SECONDS = 60.0
_log = logging.getLogger(__name__)


async def forget_seen(store: Store, older_than_seconds: float, limit: int = _STEP) -> int:
    """Delete inbox rows of messages done longer ago than that, oldest first; returns how many.

    What was received and not done is kept for ever.
    """
    async with store.transaction() as tx:
        adapter: Any = transactions.resolve(tx, store.tables.qualified)
        driver = getattr(adapter, "driver", None)
        if driver is not None:
            query = load(driver.dialect, driver.style, adapter.prefix)["forget"]
            values = {
                "seconds": int(older_than_seconds),
                "before": host_microseconds() - int(older_than_seconds * 1_000_000),
                "most": limit,
            }
            return int(await driver.change(query.sql, [values[name] for name in query.names]))
        collection = getattr(adapter, "_collection", None)
        return await _forget_documents(adapter, older_than_seconds, limit) if collection else 0


async def _forget_documents(adapter: Any, older_than_seconds: float, limit: int) -> int:
    """Do it in MongoDB, by the host's clock: a little early or late makes no difference here."""
    inbox = adapter._collection("inbox")
    before = from_microseconds(host_microseconds()) - timedelta(seconds=older_than_seconds)
    old = {"status": "done", "processed_at": {"$lt": before}}
    found = inbox.find(old, {"_id": 1}, session=adapter.session).sort("processed_at").limit(limit)
    ids = [each["_id"] async for each in found]
    if not ids:
        return 0
    result = await inbox.delete_many({"_id": {"$in": ids}}, session=adapter.session)
    return int(result.deleted_count)


class Forgetter(Service):
    """Forgets what is older than `keep_seen_seconds`, in small steps."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self._bench = bench

    async def loop(self) -> None:
        store, keep = self._bench.backlog.store, self._bench.settings.keep_seen_seconds
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                while await forget_seen(store, keep) == _STEP:
                    pass
            except Exception as error:  # also the driver's own, from within the transaction
                said = short_error(error)
                self._bench.tell(Trouble(self._bench.stream, "forgetting old messages", said))


def warn_of_a_short_memory(name: str, keep_seconds: float, redelivers: float | None) -> bool:
    """Log a warning if the broker can deliver again what was forgotten; say whether it can."""
    if redelivers is None or redelivers <= keep_seconds:
        return False
    _log.warning(
        "consumer %s remembers messages for %.1f days, and the broker can deliver them again for "
        "%.1f: a repeat in between takes effect twice. Raise keep_seen_seconds",
        name, keep_seconds / 86_400, redelivers / 86_400,
    )  # fmt: skip
    return True
