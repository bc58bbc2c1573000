"""The port over any SQL driver, once for sync and async.

An adapter provides a `Driver`, which runs one statement on the caller's object and knows whether it
would autocommit; the dialects provide the statements; the rest is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from postroom.errors import TransactionError
from postroom.transaction import Acceptance, Counter, Proof, Row, Standing
from postroom.transactions.dialects import Old, dialect_of
from postroom.transactions.driver import Driver
from postroom.transactions.errors import FAILED, code_of, explain
from postroom.transactions.steps import Steps, run, run_async

_FAILED_TRANSACTION = "25P02"


class _Statements:
    def __init__(self, driver: Driver, prefix: str) -> None:
        self.driver = driver
        self.prefix = prefix
        self._holds = False

    @property
    def target(self) -> Any:
        """The object that holds the transaction, even if the caller passed a proxy."""
        return self.driver.target

    def check(self) -> None:
        self.driver.check()

    def after_commit(self, call: Callable[[], None]) -> bool:  # noqa: ARG002
        """Return that the driver has no such hook."""
        return False

    def _insert(self, rows: Sequence[Row], whole: bool) -> Steps[int]:
        driver = self.driver
        yield driver.guard()
        if driver.flushes:
            yield driver.flush()
        dialect = dialect_of(driver.dialect, driver.style, self.prefix)
        return (yield from dialect.insert(driver, rows, whole))

    def _count_up(self, counters: Sequence[Counter]) -> Steps[list[int]]:
        driver = self.driver
        yield driver.guard()
        if driver.flushes:
            yield driver.flush()
        dialect = dialect_of(driver.dialect, driver.style, self.prefix)
        return (yield from dialect.count_up(driver, counters))

    def _cancel(self, event_id: str) -> Steps[str | None]:
        driver = self.driver
        yield driver.guard()
        dialect = dialect_of(driver.dialect, driver.style, self.prefix)
        return (yield from dialect.cancel(driver, event_id))

    def _reschedule(self, event_id: str, at_us: int) -> Steps[str | None]:
        driver = self.driver
        yield driver.guard()
        dialect = dialect_of(driver.dialect, driver.style, self.prefix)
        return (yield from dialect.reschedule(driver, event_id, at_us))

    def _accept(self, acceptance: Acceptance) -> Steps[bool]:
        driver = self.driver
        yield driver.guard()
        dialect = dialect_of(driver.dialect, driver.style, self.prefix)
        return (yield from dialect.accept(driver, acceptance))

    def _count_done(self, acceptances: Sequence[Acceptance]) -> Steps[int]:
        dialect = dialect_of(self.driver.dialect, self.driver.style, self.prefix)
        return (yield from dialect.count_done(self.driver, acceptances))

    def _done_before(
        self, consumer: str, seconds: float, limit: int, skip: int
    ) -> Steps[list[str]]:
        yield self.driver.guard()
        dialect = dialect_of(self.driver.dialect, self.driver.style, self.prefix)
        return (yield from dialect.done_before(self.driver, Old(consumer, seconds, limit, skip)))

    def _forget(self, consumer: str, ids: Sequence[str]) -> Steps[int]:
        yield self.driver.guard()
        dialect = dialect_of(self.driver.dialect, self.driver.style, self.prefix)
        return (yield from dialect.forget(self.driver, consumer, ids))

    def _is_open(self) -> Steps[bool]:
        driver = self.driver
        return (yield driver.ask()) if driver.asks else driver.is_open()

    def _hold(self, earlier: Sequence[Proof]) -> Steps[bool]:
        dialect = dialect_of(self.driver.dialect, self.driver.style, self.prefix)
        if self._holds:
            return (yield from dialect.is_held(self.driver, earlier))
        yield from dialect.hold(self.driver)
        self._holds = True
        return True

    def _standing(self, proofs: Sequence[Proof]) -> Steps[Standing]:
        driver = self.driver
        if driver.flushes:  # pending changes of an ORM fail here, not at the commit
            yield driver.flush()
        dialect = dialect_of(driver.dialect, driver.style, self.prefix)
        try:
            return (yield from dialect.standing(driver, proofs))
        except Exception as error:
            if code_of(error) != _FAILED_TRANSACTION:
                raise
            raise TransactionError(FAILED) from error

    def _stored(self, ids: Sequence[str]) -> Steps[set[str] | None]:
        dialect = dialect_of(self.driver.dialect, self.driver.style, self.prefix)
        return (yield from dialect.stored(self.driver, ids))

    def _explain(self, error: Exception, rights: str, table: str) -> None:
        """Explain missing tables and privileges; other errors stay the driver's own."""
        told = explain(error, self.prefix, f"{rights} ON {self.prefix}{table}")
        if told is not None:
            raise told from error


class SyncStatements(_Statements):
    """A SyncTransaction over any SQL driver whose calls return results."""

    def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:
        try:
            return run(self._insert(rows, whole))
        except Exception as error:
            self._explain(error, "INSERT", "outbox")
            raise

    def count_up(self, counters: Sequence[Counter]) -> list[int]:
        try:
            return run(self._count_up(counters))
        except Exception as error:
            self._explain(error, "SELECT, INSERT, UPDATE", "counter")
            raise

    def cancel(self, event_id: str) -> str | None:
        try:
            return run(self._cancel(event_id))
        except Exception as error:
            self._explain(error, "SELECT, UPDATE", "outbox")
            raise

    def reschedule(self, event_id: str, at_us: int) -> str | None:
        try:
            return run(self._reschedule(event_id, at_us))
        except Exception as error:
            self._explain(error, "SELECT, UPDATE", "outbox")
            raise

    def accept(self, acceptance: Acceptance) -> bool:
        try:
            return run(self._accept(acceptance))
        except Exception as error:
            self._explain(error, "SELECT, INSERT, UPDATE", "inbox")
            raise

    def count_done(self, acceptances: Sequence[Acceptance]) -> int:
        return run(self._count_done(acceptances))

    def done_before(self, consumer: str, seconds: float, limit: int, skip: int) -> list[str]:
        return run(self._done_before(consumer, seconds, limit, skip))

    def stored(self, ids: Sequence[str]) -> set[str] | None:
        """Return which of these ids are in the outbox; None: no permission to look."""
        return run(self._stored(ids))

    def forget(self, consumer: str, ids: Sequence[str]) -> int:
        try:
            return run(self._forget(consumer, ids))
        except Exception as error:
            self._explain(error, "DELETE", "inbox")
            raise

    def is_open(self) -> bool:
        return run(self._is_open())

    def hold(self, earlier: Sequence[Proof]) -> bool:
        return run(self._hold(earlier))

    def standing(self, proofs: Sequence[Proof]) -> Standing:
        return run(self._standing(proofs))


class AsyncStatements(_Statements):
    """An AsyncTransaction over any SQL driver whose calls are awaited."""

    async def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:
        try:
            return await run_async(self._insert(rows, whole))
        except Exception as error:
            self._explain(error, "INSERT", "outbox")
            raise

    async def count_up(self, counters: Sequence[Counter]) -> list[int]:
        try:
            return await run_async(self._count_up(counters))
        except Exception as error:
            self._explain(error, "SELECT, INSERT, UPDATE", "counter")
            raise

    async def cancel(self, event_id: str) -> str | None:
        try:
            return await run_async(self._cancel(event_id))
        except Exception as error:
            self._explain(error, "SELECT, UPDATE", "outbox")
            raise

    async def reschedule(self, event_id: str, at_us: int) -> str | None:
        try:
            return await run_async(self._reschedule(event_id, at_us))
        except Exception as error:
            self._explain(error, "SELECT, UPDATE", "outbox")
            raise

    async def accept(self, acceptance: Acceptance) -> bool:
        try:
            return await run_async(self._accept(acceptance))
        except Exception as error:
            self._explain(error, "SELECT, INSERT, UPDATE", "inbox")
            raise

    async def count_done(self, acceptances: Sequence[Acceptance]) -> int:
        return await run_async(self._count_done(acceptances))

    async def done_before(self, consumer: str, seconds: float, limit: int, skip: int) -> list[str]:
        return await run_async(self._done_before(consumer, seconds, limit, skip))

    async def stored(self, ids: Sequence[str]) -> set[str] | None:
        """Return which of these ids are in the outbox; None: no permission to look."""
        return await run_async(self._stored(ids))

    async def forget(self, consumer: str, ids: Sequence[str]) -> int:
        try:
            return await run_async(self._forget(consumer, ids))
        except Exception as error:
            self._explain(error, "DELETE", "inbox")
            raise

    async def is_open(self) -> bool:
        return await run_async(self._is_open())

    async def hold(self, earlier: Sequence[Proof]) -> bool:
        return await run_async(self._hold(earlier))

    async def standing(self, proofs: Sequence[Proof]) -> Standing:
        return await run_async(self._standing(proofs))
