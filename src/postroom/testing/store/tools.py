"""Tools for tests of a store: a relay reduced to its calls, and events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, Self, TypeVar

from postroom.event import Event
from postroom.record import LANES, Record, key_hash, lane_of
from postroom.settlement import DeadOutcome, FailedOutcome, Settlement
from postroom.store import ReadRequest, Store

PATIENCE_SECONDS = 90.0  # ends a hang; generous for a busy machine
"""How long a test waits for an expected event."""

ALL = tuple(range(LANES))
FAR = 3_600.0

F = TypeVar("F", bound=Callable[..., Any])
Write = Callable[[Store], AbstractAsyncContextManager[Any]]
Another = Callable[[], Awaitable[Store]]
SetBack = Callable[[float], Awaitable[None]]
"""Sets the store's clock back by seconds, or moves the ends of all leases ahead by as much."""


class Add(Protocol):
    """Adds events in one transaction that commits."""

    async def __call__(self, *events: Event, strict: bool = False) -> None: ...


def needs(*capabilities: str) -> Callable[[F], F]:
    """Mark a test that needs a store with all of these capabilities."""

    def mark(test: F) -> F:
        test.postroom_needs = capabilities  # type: ignore[attr-defined]
        return test

    return mark


def event(name: str, key: str | None = None, **more: Any) -> Event:
    """Make an event whose id is its name."""
    return Event("tested", {"name": name}, id=name, key=key, **more)


def keys_of_lane(lane: int, count: int) -> list[str]:
    """Return keys that share a lane."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        if lane_of(key_hash(None, f"key-{number}", "")) == lane:
            found.append(f"key-{number}")
        number += 1
    return found


def names(records: Sequence[Record]) -> list[str]:
    """Return the ids, in order."""
    return [record.id for record in records]


def patience() -> asyncio.Timeout:
    """Fail, instead of hanging, when an expected event does not happen."""
    return asyncio.timeout(PATIENCE_SECONDS)


async def until(look: Callable[[], Awaitable[object]]) -> None:
    """Poll until there is a result."""
    async with patience():
        while True:
            if await look():
                return
            await asyncio.sleep(0.005)


class Hand:
    """A relay without a loop: it owns lanes and executes single calls."""

    def __init__(self, store: Store, owner: str = "anna", stream: str = "main") -> None:
        self.store = store
        self.owner = owner
        self.stream = stream
        self.held: dict[int, int] = {}

    async def take(self, lanes: Sequence[int] = ALL, lease_seconds: float = FAR) -> Self:
        """Take these lanes, as far as they are free."""
        self.held |= await self.store.take(self.stream, self.owner, lanes, lease_seconds)
        return self

    async def read(
        self,
        lanes: Sequence[int] = ALL,
        *,
        per_lane: int = 100_000,
        rows: int = 100_000,
        size: int = 1_000_000_000,
        exclude: Collection[bytes] = (),
    ) -> list[Record]:
        request = ReadRequest(self.stream, lanes, per_lane, rows, size, exclude)
        return await self.store.read(request)

    def settlement(self, **outcomes: Any) -> Settlement:
        return Settlement(self.stream, self.owner, FAR, dict(self.held), **outcomes)

    async def settle(self, **outcomes: Any) -> set[int]:
        return await self.store.settle(self.settlement(**outcomes))

    async def fail(self, record: Record, *, delay: float = 0.0) -> None:
        """Settle a record as failed for the first time."""
        await self.settle(failed=[FailedOutcome(record, 1, delay, "boom")])

    async def bury(self, record: Record) -> None:
        await self.settle(dead=[DeadOutcome(record, 5, "boom")])

    async def stage(self, limit: int = 100_000) -> int:
        """Bring due events back; returns how many."""
        return (await self.store.stage(self.stream, ALL, limit)).moved

    async def only(self, name: str) -> Record:
        """Return the ready record of this id."""
        (found,) = [record for record in await self.read() if record.id == name]
        return found

    async def work(self, *, failing: Collection[str] = (), rows: int = 1_000) -> list[str]:
        """Do one round as a relay does and return what was confirmed, in order.

        Each key's run goes in order; it stops at a failure and at a barrier, and events behind a
        barrier are parked.
        """
        await self.stage()
        settlement = self.settlement()
        stopped: set[bytes] = set()
        for record in await self.read(rows=rows):
            if record.barrier is not None and record.seq > record.barrier:
                settlement.parked.append(record)
            elif record.key_hash in stopped:
                continue
            elif record.id in failing:
                stopped.add(record.key_hash)
                settlement.failed.append(FailedOutcome(record, record.attempts + 1, 0.0, "boom"))
            else:
                settlement.done.append(record)
        assert await self.store.settle(settlement) == set(self.held)
        return names(settlement.done)
