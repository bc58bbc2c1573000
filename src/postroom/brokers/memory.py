"""Destinations without a server: an in-memory topic log with faults on demand, and a null
broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from postroom.broker import (
    CONFIRMED,
    UNSENT,
    Broker,
    BrokerCapabilities,
    Outcome,
    Reporter,
    Verdict,
)
from postroom.errors import ConfigError
from postroom.model import receipts
from postroom.model.url import Url, whole_number
from postroom.record import Record

Script = Callable[[Record], Outcome | None]
Match = Callable[[Record], bool]


class Message(NamedTuple):
    """A message that arrived, and its topic."""

    topic: str
    record: Record


class Hold:
    """Keeps matching records from arriving until it is released."""

    def __init__(self, match: Match) -> None:
        self._match = match
        self._released = asyncio.Event()
        self.reached = asyncio.Event()
        """Set as soon as a record has reached this hold."""

    def release(self) -> None:
        self._released.set()

    async def pass_by(self, record: Record) -> None:
        if not self._released.is_set() and self._match(record):
            self.reached.set()
            await self._released.wait()


class MemoryBroker(Broker):
    """A log of topics in memory, for tests and examples.

    messages    everything that arrived, in order of arrival, including repeats

    It confirms everything by default: `script` decides record by record, `go_down` makes
    it unreachable, `lose_replies` drops confirms of messages that arrive, `hold` delays messages.
    """

    def __init__(self, *, max_bytes: int | None = None) -> None:
        if max_bytes is not None and max_bytes < 1:
            raise ConfigError(f"memory broker: max_bytes must be 1 or more, not {max_bytes}")
        self.messages: list[Message] = []
        self._max_bytes = max_bytes
        self._script: Script | None = None
        self._losing: Match | None = None
        self._down: str | None = None
        self._holds: list[Hold] = []
        self._closed = False

    @classmethod
    def from_url(cls, url: Url) -> MemoryBroker:
        """Create one from `memory:?max_bytes=…`."""
        return cls(**url.options({"max_bytes": whole_number}))

    # -- arrivals -----------------------------------------------------------------------------
    @property
    def topics(self) -> dict[str, list[Record]]:
        """The arrived messages, topic by topic."""
        found: dict[str, list[Record]] = {}
        for topic, record in self.messages:
            found.setdefault(topic, []).append(record)
        return found

    # -- faults -------------------------------------------------------------------------------
    def script(self, rule: Script | None) -> None:
        """Let `rule` decide; None leaves a record to the other faults.

        An outcome that is not confirmed keeps the record from arriving.
        """
        self._script = rule

    def go_down(self, error: str = "the memory broker is down") -> None:
        """Answer everything with an outage, until `come_back`."""
        self._down = error

    def come_back(self) -> None:
        self._down = None

    def lose_replies(self, match: Match = lambda _: True) -> None:
        """Let matching messages arrive, but report them as unknown."""
        self._losing = match

    def keep_replies(self) -> None:
        self._losing = None

    def hold(self, match: Match = lambda _: True) -> Hold:
        """Stop matching records before they arrive; `reached` is set when one has come."""
        hold = Hold(match)
        self._holds.append(hold)
        return hold

    # -- the broker port ----------------------------------------------------------------------
    @property
    def capabilities(self) -> BrokerCapabilities:
        return BrokerCapabilities(max_bytes=self._max_bytes)

    async def open(self) -> None:
        self._closed = False

    async def close(self) -> None:
        self._closed = True

    async def health(self) -> None:
        if self._closed or self._down is not None:
            raise ConnectionError(self._down or "the memory broker is closed")

    async def publish(self, batch: Sequence[Record], reporter: Reporter) -> None:
        if self._is_plain():
            self.messages.extend(Message(record.topic, record) for record in batch)
            reporter.confirm(batch, _receipts(batch) if reporter.keeps_receipts else ())
            return
        runs: dict[bytes, list[Record]] = {}
        for record in batch:
            runs.setdefault(record.key_hash, []).append(record)
        async with asyncio.TaskGroup() as group:
            for run in runs.values():
                group.create_task(self._publish_run(run, reporter))

    async def publish_alone(self, record: Record, reporter: Reporter) -> None:
        await self._publish_run([record], reporter)

    def _is_plain(self) -> bool:
        return not (
            self._closed
            or self._holds
            or self._max_bytes is not None
            or self._script is not None
            or self._losing is not None
            or self._down is not None
        )

    async def _publish_run(self, run: Sequence[Record], reporter: Reporter) -> None:
        stopped = False
        for record in run:
            if stopped:
                reporter.report(record, UNSENT)
                continue
            outcome = await self._send(record)
            if outcome is CONFIRMED and reporter.keeps_receipts:
                outcome = CONFIRMED._replace(receipt=_receipts([record])[0])
            reporter.report(record, outcome)
            stopped = outcome.verdict is not Verdict.CONFIRMED

    async def _send(self, record: Record) -> Outcome:
        for hold in self._holds:
            await hold.pass_by(record)
        if self._closed or self._down is not None:
            return Outcome(Verdict.OUTAGE, self._down or "the memory broker is closed")
        if self._max_bytes is not None and len(record.payload) > self._max_bytes:
            return Outcome(
                Verdict.REJECTED,
                f"{len(record.payload)} bytes are more than max_bytes={self._max_bytes}",
            )
        scripted = self._script(record) if self._script is not None else None
        if scripted is not None and scripted.verdict is not Verdict.CONFIRMED:
            return scripted
        self.messages.append(Message(record.topic, record))
        if scripted is None and self._losing is not None and self._losing(record):
            return Outcome(Verdict.UNKNOWN, "the reply was lost")
        return CONFIRMED


def _receipts(records: Sequence[Record]) -> list[str]:
    texts = {topic: receipts.make("memory", topic=topic) for topic in {r.topic for r in records}}
    return [texts[record.topic] for record in records]


class NullBroker(Broker):
    """Confirms everything and keeps nothing, to measure the cost of the relay itself."""

    def __init__(self) -> None:
        self.confirmed = 0

    @classmethod
    def from_url(cls, url: Url) -> NullBroker:
        """Create one from `null:`, which has no options."""
        url.options({})
        return cls()

    @property
    def capabilities(self) -> BrokerCapabilities:
        return BrokerCapabilities()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def health(self) -> None: ...

    async def publish(self, batch: Sequence[Record], reporter: Reporter) -> None:
        self.confirmed += len(batch)
        reporter.confirm(batch)

    async def publish_alone(self, record: Record, reporter: Reporter) -> None:
        await self.publish([record], reporter)
