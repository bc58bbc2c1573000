"""The contract of concurrent `accept`: one message, delivered several times at once (I1, I2).

    class TestMyDriver(InboxContract):
        @pytest.fixture
        async def inbox_bench(self): ...      # an InboxBench

Single transactions are tested by `postroom.testing.transactions`. Here several collide: some
databases make the second one wait, others abort it at once; a consumer then runs
the whole transaction again, as this contract does.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from postroom.inbox import Inbox, SyncInbox
from postroom.testing.transaction_tools import Note
from postroom.transactions.conflicts import is_conflict

PATIENCE_SECONDS = 180.0  # ends a hang; generous for a busy machine
WORKERS, DELIVERIES = 8, 1_000


class InboxBench(ABC):
    """How the contract drives one driver. The business table is `orders`, and has a name.

    blocking    the driver blocks: each worker runs in a thread, with its own event loop
    sync        use SyncInbox instead of Inbox
    """

    blocking = False
    sync = False

    @abstractmethod
    def connection(self) -> AbstractAsyncContextManager[Any]:
        """Open a separate connection for a worker."""

    @abstractmethod
    def transaction(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        """Open a transaction, commit it at the end, roll it back on an error.

        Yields the object that the caller would pass to `accept`.
        """

    @abstractmethod
    async def order(self, tx: Any, name: str) -> None:
        """Write a business row."""

    @abstractmethod
    async def orders(self) -> list[str]:
        """Return the committed business rows, as another connection sees them."""

    async def accept(self, tx: Any, message: Note) -> bool:
        if self.sync:
            return SyncInbox("payments").accept(tx, message)
        return await Inbox("payments").accept(tx, message)

    async def deliver(self, connection: Any, message: Note, effect: str) -> bool:
        """Handle a message as a consumer does; a transaction that lost a conflict is repeated."""
        while True:
            try:
                async with self.transaction(connection) as tx:
                    new = await self.accept(tx, message)
                    if new:
                        await self.order(tx, effect)
            except Exception as error:
                if not is_conflict(error):
                    raise
                await asyncio.sleep(0.001)
            else:
                return new

    async def at_once(self, *works: Callable[[], Awaitable[Any]]) -> list[Any]:
        """Run works concurrently: in threads if the driver blocks."""
        if not self.blocking:
            return list(await asyncio.gather(*(work() for work in works)))
        threads = [asyncio.to_thread(_run, work) for work in works]
        return list(await asyncio.gather(*threads))


def _run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await work()

    return asyncio.run(main())


class InboxContract:
    """Inherit it, and provide the fixture `inbox_bench`."""

    @pytest.fixture
    async def inbox_bench(self) -> InboxBench:
        raise NotImplementedError("give your test class a fixture `inbox_bench`")

    @pytest.mark.req("S3.4", "S5.4")
    @pytest.mark.promise("G6", "I1", "I2")
    async def test_a_thousand_deliveries_to_eight_workers_take_effect_once(
        self, inbox_bench: InboxBench
    ) -> None:
        async def work() -> int:
            async with inbox_bench.connection() as connection:
                return sum(
                    [
                        await inbox_bench.deliver(connection, Note("m-1"), "paid")
                        for _ in range(DELIVERIES // WORKERS)
                    ]
                )

        async with asyncio.timeout(PATIENCE_SECONDS):
            new = await inbox_bench.at_once(*[work] * WORKERS)
        assert sum(new) == 1
        assert await inbox_bench.orders() == ["paid"]

    @pytest.mark.promise("G6", "I2")
    @pytest.mark.parametrize("end", ["commit", "rollback"])
    async def test_a_repeat_that_comes_before_the_first_has_ended(
        self, inbox_bench: InboxBench, end: str
    ) -> None:
        accepted, coming = threading.Event(), threading.Event()

        async def first() -> bool:
            async with inbox_bench.connection() as connection:
                try:
                    async with inbox_bench.transaction(connection) as tx:
                        new = await inbox_bench.accept(tx, Note("m-1"))
                        await inbox_bench.order(tx, "first")
                        accepted.set()
                        await _until(coming)
                        if end == "rollback":
                            raise _Undo
                except _Undo:
                    pass
                return new

        async def second() -> bool:
            async with inbox_bench.connection() as connection:
                await _until(accepted)
                coming.set()
                return await inbox_bench.deliver(connection, Note("m-1"), "second")

        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await inbox_bench.at_once(first, second) == [True, end == "rollback"]
        assert await inbox_bench.orders() == ["first" if end == "commit" else "second"]


class _Undo(Exception):
    pass


async def _until(event: threading.Event) -> None:
    while not event.is_set():  # noqa: ASYNC110 - it is set in another thread
        await asyncio.sleep(0.002)
