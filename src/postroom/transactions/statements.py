"""What every SQL adapter does, without I/O: which statements, in which order, and what they mean.

An adapter brings a `Driver`, which knows how to run one statement on the caller's object and
whether it would commit by itself; everything else is here, once for both worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from postroom.clock import host_microseconds
from postroom.errors import SchemaError
from postroom.transaction import Counter, Mark, Row
from postroom.transactions.sql import Queries, load
from postroom.transactions.steps import Steps, run, run_async

A = TypeVar("A")
T = TypeVar("T")
Parameters = Mapping[str, Any]


class Driver(Protocol):
    """The caller's object. What its calls return is a result, or something to await."""

    @property
    def dialect(self) -> str:
        """The folder its statements are in."""

    def check(self) -> None:
        """Refuse what is known without asking to commit by itself."""

    def guard(self) -> Steps[None]:
        """Refuse a statement that would commit by itself (W1, W2)."""

    def settle_first(self) -> Any:
        """Do what must come before an event gets its number (W3)."""

    def change(self, sql: str, parameters: Parameters) -> Any:
        """Run a statement; the number of rows it changed."""

    def change_many(self, sql: str, parameters: Sequence[Parameters]) -> Any:
        """Run a statement for each of the parameters, in order; the rows changed in all."""

    def fetch(self, sql: str, parameters: Parameters) -> Any:
        """Run a statement to its end; the first column of its first row, or None."""


def insert(driver: Driver, queries: Queries, rows: Sequence[Row]) -> Steps[int]:
    yield from driver.guard()
    yield driver.settle_first()
    now = host_microseconds()
    parameters = [{**row._asdict(), "now": now} for row in rows]
    if len(parameters) == 1:
        return (yield driver.change(queries.insert, parameters[0]))  # type: ignore[no-any-return]
    return (yield driver.change_many(queries.insert, parameters))  # type: ignore[no-any-return]


def count_up(driver: Driver, queries: Queries, counters: Sequence[Counter]) -> Steps[list[int]]:
    yield from driver.guard()
    yield driver.settle_first()
    values: list[int] = []
    for counter in counters:
        values.append((yield driver.fetch(queries.count_up, counter._asdict())))  # noqa: PERF401 - a yield
    return values


def accept(driver: Driver, queries: Queries, mark: Mark) -> Steps[bool]:
    yield from driver.guard()
    now = host_microseconds()
    found = yield driver.fetch(queries.accept, {**mark._asdict(), "now": now})
    return found is not None


def _explained(steps: Steps[T], prefix: str) -> Steps[T]:
    """Say what to do when the tables are missing; any other error of the driver stays its own."""
    try:
        return (yield from steps)
    except Exception as error:
        if f"no such table: {prefix}" not in str(error):
            raise
        raise SchemaError(
            f"the tables {prefix}… are not in this database. Create them with `postroom migrate` "
            "or `await migrate(url)`, in the same file as the business data"
        ) from error


class _Statements:
    def __init__(self, driver: Driver, prefix: str) -> None:
        self.driver = driver
        self.prefix = prefix

    def check(self) -> None:
        self.driver.check()

    def after_commit(self, call: Callable[[], None]) -> bool:  # noqa: ARG002
        """Say that the driver has no such hook."""
        return False

    def _steps(self, method: Callable[[Driver, Queries, A], Steps[T]], argument: A) -> Steps[T]:
        queries = load(self.driver.dialect, self.prefix)
        return _explained(method(self.driver, queries, argument), self.prefix)


class SyncStatements(_Statements):
    """A SyncTransaction over any SQL driver whose calls return results."""

    def insert(self, rows: Sequence[Row]) -> int:
        return run(self._steps(insert, rows))

    def count_up(self, counters: Sequence[Counter]) -> list[int]:
        return run(self._steps(count_up, counters))

    def accept(self, mark: Mark) -> bool:
        return run(self._steps(accept, mark))


class AsyncStatements(_Statements):
    """An AsyncTransaction over any SQL driver whose calls are awaited."""

    async def insert(self, rows: Sequence[Row]) -> int:
        return await run_async(self._steps(insert, rows))

    async def count_up(self, counters: Sequence[Counter]) -> list[int]:
        return await run_async(self._steps(count_up, counters))

    async def accept(self, mark: Mark) -> bool:
        return await run_async(self._steps(accept, mark))
