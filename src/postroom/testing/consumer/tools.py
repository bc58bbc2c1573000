"""A store with effects, handlers and consumers, connected to a broker: the setting of the
contract.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, NamedTuple

from postroom.engine.consumer import Consumer
from postroom.engine.handlers.handlers import Handlers
from postroom.lookup import Filter
from postroom.record import State
from postroom.retry import Constant, RetryPolicy
from postroom.source import Source
from postroom.stores.sqlite import SqliteStore

PATIENCE_SECONDS = 90.0
JSON = {"content-type": "application/json"}


class Sent(NamedTuple):
    """A message as any sender might send it; fields that are None are left out."""

    id: str | None
    body: bytes = b"{}"
    key: str | None = None
    type: str | None = "order.created"
    headers: Mapping[str, str] = JSON


class ConsumerWire(ABC):
    """How the contract drives a broker: a queue, or a topic, of the test's own."""

    @abstractmethod
    async def send(self, *messages: Sent) -> None:
        """Send messages in order, as a foreign sender does, and wait until they have arrived."""

    @abstractmethod
    def source(self) -> Source:
        """Return a new source of it; several take turns, or share it, as the broker does."""

    @abstractmethod
    async def unacknowledged(self) -> int:
        """Return how many messages the broker still holds for its consumers, in flight or not."""

    @abstractmethod
    async def left(self) -> int:
        """Return how many messages a consumer that starts now would receive."""


class Room:
    """A store with effects, handlers, and consumers on a wire."""

    def __init__(self, wire: ConsumerWire, path: Path) -> None:
        self.wire = wire
        self.path = path
        self.store = SqliteStore(path)
        self.handlers = Handlers(name="payments")

    def consumer(self, **options: Any) -> Consumer:
        options.setdefault("retry", RetryPolicy(backoff=Constant(0.01)))
        store = SqliteStore(self.path)  # the consumer closes the source
        return Consumer(self.wire.source(), store, self.handlers, **options)

    @asynccontextmanager
    async def consuming(self, **options: Any) -> AsyncIterator[Consumer]:
        async with self.consumer(**options) as consumer:
            yield consumer

    async def effect(self, tx: Any, name: str) -> None:
        await tx.execute("INSERT INTO effects (name) VALUES (?)", (name,))

    def effects(self) -> list[str]:
        """Return the effects, in order."""
        with closing(sqlite3.connect(self.path)) as conn:
            return [n for (n,) in conn.execute("SELECT name FROM effects ORDER BY rowid")]

    async def dead(self) -> dict[str, str]:
        """Return the reasons of dead letters, by their ids."""
        found = await self.store.find(Filter(stream="inbox.payments", state=State.DEAD))
        return {record.id: record.last_error or "" for record in found}

    async def broker_knows(self) -> None:
        """Wait until the broker has processed the acknowledgements: a kill does not wait for it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.wire.unacknowledged():  # noqa: ASYNC110 - the broker does not tell
                await asyncio.sleep(0.02)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - it may be a look at a database
                await asyncio.sleep(0.01)
