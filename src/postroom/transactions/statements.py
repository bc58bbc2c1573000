"""The port over any SQL driver, once for both worlds.

An adapter brings a `Driver`, which knows how to run one statement on the caller's object and
whether it would commit by itself; the dialects know what to say; the rest is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from postroom.transaction import Counter, Mark, Row
from postroom.transactions.dialects import dialect_of
from postroom.transactions.driver import Driver
from postroom.transactions.failures import explain
from postroom.transactions.steps import Steps, run, run_async

T = TypeVar("T")


class _Statements:
    def __init__(self, driver: Driver, prefix: str) -> None:
        self.driver = driver
        self.prefix = prefix

    @property
    def target(self) -> Any:
        """The object that holds the transaction, whatever proxy the caller gave."""
        return self.driver.target

    def check(self) -> None:
        self.driver.check()

    def after_commit(self, call: Callable[[], None]) -> bool:  # noqa: ARG002
        """Say that the driver has no such hook."""
        return False

    def _insert(self, rows: Sequence[Row], whole: bool) -> Steps[int]:
        driver = self.driver
        yield driver.guard()
        yield driver.settle_first()
        dialect = dialect_of(driver.dialect, driver.style, self.prefix)
        return (yield from dialect.insert(driver, rows, whole))

    def _count_up(self, counters: Sequence[Counter]) -> Steps[list[int]]:
        driver = self.driver
        yield driver.guard()
        yield driver.settle_first()
        dialect = dialect_of(driver.dialect, driver.style, self.prefix)
        return (yield from dialect.count_up(driver, counters))

    def _accept(self, mark: Mark) -> Steps[bool]:
        driver = self.driver
        yield driver.guard()
        dialect = dialect_of(driver.dialect, driver.style, self.prefix)
        return (yield from dialect.accept(driver, mark))

    def _explained(self, steps: Steps[T], rights: str, table: str) -> Steps[T]:
        """Say what to do about missing tables and rights; other errors stay the driver's own."""
        try:
            return (yield from steps)
        except Exception as error:
            told = explain(error, self.prefix, f"{rights} ON {self.prefix}{table}")
            if told is None:
                raise
            raise told from error


class SyncStatements(_Statements):
    """A SyncTransaction over any SQL driver whose calls return results."""

    def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:
        return run(self._explained(self._insert(rows, whole), "INSERT", "outbox"))

    def count_up(self, counters: Sequence[Counter]) -> list[int]:
        steps = self._count_up(counters)
        return run(self._explained(steps, "SELECT, INSERT, UPDATE", "counter"))

    def accept(self, mark: Mark) -> bool:
        return run(self._explained(self._accept(mark), "SELECT, INSERT, UPDATE", "inbox"))


class AsyncStatements(_Statements):
    """An AsyncTransaction over any SQL driver whose calls are awaited."""

    async def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:
        return await run_async(self._explained(self._insert(rows, whole), "INSERT", "outbox"))

    async def count_up(self, counters: Sequence[Counter]) -> list[int]:
        steps = self._count_up(counters)
        return await run_async(self._explained(steps, "SELECT, INSERT, UPDATE", "counter"))

    async def accept(self, mark: Mark) -> bool:
        steps = self._accept(mark)
        return await run_async(self._explained(steps, "SELECT, INSERT, UPDATE", "inbox"))
