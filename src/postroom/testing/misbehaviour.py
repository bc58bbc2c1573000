"""Handlers that misuse their transactions take effect once or not at all.

Each handler writes order A. Then it misbehaves, alone and between two correct ones in a batch.
The expectations are for three kinds of driver; a bench declares its kind:

    transaction   after the end of a transaction the driver opens another one
    autocommit    … later statements are autocommitted
    refused       the driver refuses to end a transaction that other code has opened
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NamedTuple

import pytest

from postroom.broker import Outcome, Verdict
from postroom.engine.handlers.handlers import Handlers
from postroom.record import Record
from postroom.testing.broker_tools import RecordingReporter, make_record
from postroom.testing.transaction_tools import TransactionBench

PATIENCE = 90
Behaviour = Callable[[TransactionBench, Any], Awaitable[None]]
CONFIRMED, FAILED, REJECTED = Verdict.CONFIRMED, Verdict.FAILED, Verdict.REJECTED


class PanicError(BaseException):
    """Similar to the panic of a Rust extension."""


async def well(bench: TransactionBench, tx: Any) -> None:
    await bench.order(tx, "A")


async def return_early(bench: TransactionBench, tx: Any) -> None: ...


async def swallow(bench: TransactionBench, tx: Any) -> None:
    await bench.order(tx, "A")
    with pytest.raises(Exception):  # noqa: B017 - whatever the driver raises
        await bench.fail(tx)


async def panic(bench: TransactionBench, tx: Any) -> None:
    await bench.order(tx, "A")
    raise PanicError("index out of bounds")


async def commit(bench: TransactionBench, tx: Any) -> None:
    await bench.order(tx, "A")
    await bench.commit_inside(tx)


async def commit_and_go_on(bench: TransactionBench, tx: Any) -> None:
    await commit(bench, tx)
    await bench.order(tx, "B")


async def commit_and_raise(bench: TransactionBench, tx: Any) -> None:
    await commit(bench, tx)
    raise ValueError("after the commit")


async def roll_back(bench: TransactionBench, tx: Any) -> None:
    await bench.order(tx, "A")
    await bench.roll_back_inside(tx)


async def roll_back_and_go_on(bench: TransactionBench, tx: Any) -> None:
    await roll_back(bench, tx)
    await bench.order(tx, "B")


async def roll_back_and_commit(bench: TransactionBench, tx: Any) -> None:
    await roll_back_and_go_on(bench, tx)
    await bench.commit_inside(tx)


async def roll_back_commit_and_go_on(bench: TransactionBench, tx: Any) -> None:
    await roll_back_and_go_on(bench, tx)
    with suppress(Exception):  # in autocommit mode there is nothing to commit
        await bench.commit_inside(tx)
    await bench.order(tx, "C")


async def roll_back_and_raise(bench: TransactionBench, tx: Any) -> None:
    await roll_back_and_go_on(bench, tx)
    raise ValueError("after the rollback")


async def close(bench: TransactionBench, tx: Any) -> None:
    await bench.order(tx, "A")
    await bench.close_inside(tx)


class End(NamedTuple):
    """The final state of the event, after at most three attempts."""

    verdict: Verdict
    orders: list[str]


NOTHING = End(FAILED, [])
TABLE: dict[Behaviour, dict[str, End]] = {
    well: dict.fromkeys(("transaction", "autocommit", "refused"), End(CONFIRMED, ["A"])),
    return_early: dict.fromkeys(("transaction", "autocommit", "refused"), End(CONFIRMED, [])),
    panic: dict.fromkeys(("transaction", "autocommit", "refused"), NOTHING),
    commit: {
        "transaction": End(CONFIRMED, ["A"]),
        "autocommit": End(CONFIRMED, ["A"]),
        "refused": NOTHING,
    },
    commit_and_go_on: {
        "transaction": End(CONFIRMED, ["A", "B"]),
        "autocommit": End(CONFIRMED, ["A", "B"]),
        "refused": NOTHING,
    },
    commit_and_raise: {
        "transaction": End(CONFIRMED, ["A"]),  # failed first; then it is a repeat, and logged
        "autocommit": End(REJECTED, ["A"]),
        "refused": NOTHING,
    },
    roll_back: {
        "transaction": End(REJECTED, []),  # it might have committed something after that
        "autocommit": End(REJECTED, []),
        "refused": NOTHING,
    },
    roll_back_and_go_on: {
        "transaction": End(REJECTED, []),  # the same: nothing tells what it has committed
        "autocommit": End(REJECTED, ["B"]),
        "refused": NOTHING,
    },
    roll_back_and_commit: {
        "transaction": End(REJECTED, ["B"]),
        "autocommit": End(REJECTED, ["B"]),
        "refused": NOTHING,
    },
    roll_back_commit_and_go_on: {
        "transaction": End(REJECTED, ["B"]),
        "autocommit": End(REJECTED, ["B", "C"]),
        "refused": NOTHING,
    },
    roll_back_and_raise: {
        "transaction": NOTHING,
        "autocommit": End(REJECTED, ["B"]),
        "refused": NOTHING,
    },
}


class MisbehaviourContract:
    """Whatever a handler does inside its transaction, it takes effect once or not at all."""

    @pytest.mark.req("S2.5")
    @pytest.mark.promise("G6", "H2", "F3")
    @pytest.mark.parametrize("together", [False, True], ids=["single", "batch"])
    async def test_a_handler_takes_effect_once_or_not_at_all(
        self, bench: TransactionBench, together: bool
    ) -> None:  # R-A1, R-B2, R-C6
        expected = {behaviour.__name__: ends[bench.after_end] for behaviour, ends in TABLE.items()}
        expected["swallow"] = NOTHING if bench.aborts else End(CONFIRMED, ["A"])
        found = {each.__name__: await _end(bench, each, together) for each in (*TABLE, swallow)}
        assert found == expected
        closed = await _end(bench, close, together)
        assert closed.orders == []
        assert closed.verdict in (FAILED, REJECTED)

    @pytest.mark.promise("G6", "H2")
    async def test_each_of_several_in_a_batch_takes_effect_once_or_not_at_all(
        self, bench: TransactionBench
    ) -> None:  # R-B2
        handlers = _handlers(bench, roll_back_commit_and_go_on)
        before = Counter(await bench.orders())
        kinds = ["good", "misbehave", "good", "misbehave", "misbehave", "good"]
        records = [
            make_record(n, id=f"several-{n}", key=f"k{n}", type=kind)
            for n, kind in enumerate(kinds, 1)
        ]
        assert await handlers.handle_together(records) is None
        ends = [(await _last(handlers, record)).verdict for record in records]
        bad = TABLE[roll_back_commit_and_go_on][bench.after_end]
        assert ends == [CONFIRMED if kind == "good" else bad.verdict for kind in kinds]
        orders = Counter(await bench.orders()) - before
        goods = [record.id for record in records if record.type == "good"]
        assert orders == Counter(goods + bad.orders * kinds.count("misbehave"))


async def _end(bench: TransactionBench, behaviour: Behaviour, together: bool) -> End:
    handlers = _handlers(bench, behaviour)
    before = Counter(await bench.orders())
    ids = [f"{behaviour.__name__}-{n}" for n in (1, 2, 3)]
    first, record, last = (
        make_record(n, id=each, key=f"k{n}", type="misbehave" if n == 2 else "good")
        for n, each in enumerate(ids, 1)
    )
    if together:
        outcomes = await handlers.handle_together([first, record, last])
        if outcomes is None:
            for good in (first, last):
                assert (await _last(handlers, good)).verdict is CONFIRMED
        else:
            assert [outcome.verdict for outcome in outcomes] == [CONFIRMED] * 3
    end = (await _last(handlers, record)).verdict  # of one that is done: a repeat
    orders = sorted((Counter(await bench.orders()) - before).elements())
    goods = [ids[0], ids[2]] if together else []
    assert [name for name in orders if name in ids] == goods
    if end is CONFIRMED:
        noted = {row["id"] for row in await bench.rows("postroom_inbox")}
        assert noted >= {*goods, ids[1]}
    return End(end, [name for name in orders if name not in ids])


async def end_of(bench: TransactionBench, behaviour: Behaviour, tries: int = 3) -> Verdict:
    """Run a handler with this behaviour; return the last verdict."""
    record = make_record(2, id="it", type="misbehave")
    return (await _last(_handlers(bench, behaviour), record, tries)).verdict


async def _last(handlers: Handlers, record: Record, tries: int = 3) -> Outcome:
    """Try an event, three times at most, as long as it fails; a done one once more."""
    async with asyncio.timeout(PATIENCE):
        for _ in range(tries):
            outcome = await handlers.handle(record, RecordingReporter())
            if outcome.verdict is REJECTED:
                break
        return outcome


def _handlers(bench: TransactionBench, behaviour: Behaviour) -> Handlers:
    if bench.sync:
        handlers: Handlers = _HandlersHere(name="payments", sync_transaction=_sync_factory(bench))
    else:
        handlers = Handlers(name="payments", transaction=_factory(bench))

    async def misbehave(_event: Record, tx: Any) -> None:
        await behaviour(bench, tx)

    async def good(event: Record, tx: Any) -> None:
        await bench.order(tx, event.id)

    for name, function in (("misbehave", misbehave), ("good", good)):
        call: Any = function
        handlers.on(name, name=name)(_driven(call) if bench.sync else call)
    return handlers


def _driven(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def call(event: Record, tx: Any) -> None:
        drive(function(event, tx))

    return call


def _factory(bench: TransactionBench) -> Any:
    @asynccontextmanager
    async def transaction() -> AsyncIterator[Any]:
        tx = await bench.begin()
        try:
            yield tx
        except BaseException:
            await bench.undo(tx)
            raise
        else:
            await bench.leave(tx)
        finally:
            with suppress(Exception):
                await bench.close_inside(tx)

    return bench.factory or transaction


def _sync_factory(bench: TransactionBench) -> Any:
    @contextmanager
    def transaction() -> Iterator[Any]:
        tx = drive(bench.begin())
        try:
            yield tx
        except BaseException:
            drive(bench.undo(tx))
            raise
        else:
            drive(bench.leave(tx))
        finally:
            with suppress(Exception):
                drive(bench.close_inside(tx))

    return bench.factory or transaction


def drive(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits."""
    try:
        call.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


class _Here:
    """Runs thread functions in the current thread: some connections belong to a thread."""

    def __init__(self) -> None:
        self.hanging: dict[str, Any] = {}

    async def start(self, call: Callable[[], Any], _patience: float) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(call())
        return future

    def close(self) -> None: ...


class _HandlersHere(Handlers):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._runtime.enter()
        self._runtime.threads = _Here()  # type: ignore[assignment]
