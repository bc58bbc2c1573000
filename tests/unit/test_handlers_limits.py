"""Time limits of handlers, on the loop and in threads."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime

import pytest

from postroom.broker import Outcome, Verdict
from postroom.engine.handlers import thread_runs
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.handlers.threads import Hang, Threads
from postroom.testing.broker_tools import RecordingReporter, make_record
from postroom.transaction import Standing
from tests.unit.handler_database import PATIENCE, Database, Tx, made, outcome_of


@pytest.fixture
def database():
    return Database()


@pytest.fixture
def reporter():
    return RecordingReporter()


# -- time limits (H3) -------------------------------------------------------------------------
@pytest.mark.promise("H3")
async def test_an_async_handler_over_its_limit_is_rolled_back(database):
    handlers = made(database, time_limit_seconds=0.02)

    @handlers.on("order.created")
    async def slow(event, tx):
        tx.rows.append(("effect", event.id))
        await asyncio.Event().wait()

    assert await outcome_of(handlers) == Outcome(
        Verdict.FAILED, "running the handler took longer than 0.02 s"
    )
    assert database.log == ["begin", "accept handlers/slow", "rollback"]


@pytest.mark.promise("H3")
async def test_an_async_handler_that_swallows_its_cancellation_cannot_commit(database):
    handlers = made(database, time_limit_seconds=0.02)

    @handlers.on("order.created")
    async def stubborn(event, tx):
        tx.rows.append(("effect", event.id))
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    outcome = await outcome_of(handlers)
    assert outcome.verdict is Verdict.FAILED
    assert "took longer" in outcome.error
    assert database.rows == []


class Limit:
    """The time limit of sync handlers, made to fire exactly when a thread has come to a point."""

    def __init__(self, monkeypatch):
        self.points = []
        self.then = []
        monkeypatch.setattr(thread_runs, "_ended", self._ended)

    def fires_at(self, point, then=lambda: None):
        self.points.append(point)
        self.then.append(then)

    async def _ended(self, future, limit_seconds):
        if not self.points:
            await asyncio.wait({future}, timeout=PATIENCE)
            return future.done()
        assert await asyncio.to_thread(self.points.pop(0).wait, PATIENCE)
        self.then.pop(0)()
        return False


@pytest.fixture
def limit(monkeypatch):
    return Limit(monkeypatch)


@pytest.mark.promise("H3")
async def test_a_sync_handler_over_its_limit_cannot_commit_later(database, limit):
    reached, release, ended = threading.Event(), threading.Event(), threading.Event()

    @contextmanager
    def transaction():
        try:
            with database.sync_transaction() as tx:
                yield tx
        finally:
            ended.set()

    handlers = Handlers(name="handlers", sync_transaction=transaction, time_limit_seconds=7)

    @handlers.on("order.created")
    def slow(event, tx):
        tx.rows.append(("effect", event.id))
        reached.set()
        assert release.wait(PATIENCE)

    limit.fires_at(reached)
    assert await outcome_of(handlers) == Outcome(
        Verdict.FAILED, "running the handler took longer than 7 s"
    )
    assert database.log == ["begin", "accept handlers/slow"]
    release.set()
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    assert database.rows == []
    assert database.log[-1] == "rollback"


@pytest.mark.promise("H3")
async def test_a_commit_that_was_claimed_in_time_is_waited_for(limit):
    database = Database()
    committing, release = threading.Event(), threading.Event()

    @contextmanager
    def transaction():
        with database.sync_transaction() as tx:
            yield tx
            committing.set()
            assert release.wait(PATIENCE)

    handlers = Handlers(name="handlers", sync_transaction=transaction)
    handlers.on("order.created", name="h")(lambda event, tx: tx.rows.append(("effect", event.id)))
    limit.fires_at(committing, then=release.set)
    assert (await outcome_of(handlers)).verdict is Verdict.CONFIRMED
    assert database.effects() == [("effect", "event-1")]


@pytest.mark.promise("H3", "P3")
async def test_a_commit_that_hangs_in_a_thread_is_unknown(limit):
    committing, release = threading.Event(), threading.Event()

    @contextmanager
    def transaction():
        yield Tx(Database())
        committing.set()
        assert release.wait(PATIENCE)

    handlers = Handlers(name="handlers", sync_transaction=transaction, time_limit_seconds=7)
    handlers.on("order.created", name="h")(lambda event, tx: None)
    limit.fires_at(committing)
    limit.fires_at(committing)
    assert await outcome_of(handlers) == Outcome(Verdict.UNKNOWN, "committing took longer than 7 s")
    release.set()


@pytest.mark.promise("H3", "P3")
async def test_a_commit_that_hangs_on_the_loop_is_unknown():
    @asynccontextmanager
    async def transaction():
        yield Tx(Database())
        await asyncio.Event().wait()

    handlers = Handlers(name="handlers", transaction=transaction, time_limit_seconds=0.02)

    @handlers.on("order.created")
    async def quick(event, tx): ...

    assert await outcome_of(handlers) == Outcome(
        Verdict.UNKNOWN, "committing took longer than 0.02 s"
    )


@pytest.mark.promise("H3")
async def test_a_rollback_that_hangs_is_left_behind():
    @asynccontextmanager
    async def transaction():
        try:
            yield Tx(Database())
        finally:
            await asyncio.Event().wait()

    handlers = Handlers(name="handlers", transaction=transaction, time_limit_seconds=0.02)

    @handlers.on("order.created")
    async def slow(event, tx):
        await asyncio.Event().wait()

    assert await outcome_of(handlers) == Outcome(
        Verdict.FAILED, "running the handler took longer than 0.02 s"
    )


@pytest.mark.promise("H1")
async def test_a_database_that_hangs_while_a_transaction_is_opened_is_an_outage():
    @asynccontextmanager
    async def transaction():
        await asyncio.Event().wait()
        yield

    handlers = Handlers(name="handlers", transaction=transaction, time_limit_seconds=0.02)

    @handlers.on("order.created")
    async def never(event, tx): ...

    assert await outcome_of(handlers) == Outcome(
        Verdict.OUTAGE, "opening the transaction took longer than 0.02 s"
    )


@pytest.mark.promise("G7", "H3")
async def test_an_accept_that_hangs_stops_no_other_event(reporter):
    # It may wait for the row of an earlier, abandoned run of the same event.
    class Waiting(Tx):
        async def accept(self, mark):
            if mark.id == "event-1":
                await asyncio.Event().wait()
            return True

        async def insert(self, rows): ...

        async def hold(self, earlier):
            return True

        async def is_open(self):
            return True

        async def standing(self, proofs):
            return Standing.HELD

    @asynccontextmanager
    async def transaction():
        yield Waiting(Database())

    handlers = Handlers(
        name="handlers", transaction=transaction, time_limit_seconds=0.02, concurrency=1
    )

    @handlers.on("order.created")
    async def quick(event, tx): ...

    batch = [make_record(n, key=f"k{n}") for n in (1, 2)]
    await handlers.publish(batch, reporter)
    assert reporter.outcome(batch[0]) == Outcome(
        Verdict.MISCONFIGURED, "accepting the event took longer than 0.02 s"
    )
    assert reporter.verdict(batch[1]) is Verdict.CONFIRMED


@pytest.mark.promise("H3")
async def test_a_hung_thread_keeps_its_place_and_the_rest_goes_on(database, limit):
    handlers = made(database, concurrency=2, time_limit_seconds=0.05)
    reached, release = threading.Event(), threading.Event()

    @handlers.on("hang")
    def hang(event, tx):
        reached.set()
        assert release.wait(PATIENCE)

    @handlers.on("quick")
    def quick(event, tx): ...

    async def run(n, type_):
        if type_ == "hang":
            reached.clear()
            limit.fires_at(reached)
        return await outcome_of(handlers, make_record(n, type=type_))

    assert (await run(1, "hang")).verdict is Verdict.FAILED
    assert (await run(2, "quick")).verdict is Verdict.CONFIRMED
    assert (await run(3, "hang")).verdict is Verdict.FAILED
    no_room = await run(4, "quick")
    assert no_room.verdict is Verdict.MISCONFIGURED  # an alarm; async handlers go on
    assert "all 2 threads for sync handlers are taken by stuck handlers" in no_room.error
    await handlers.close()
    release.set()
    handlers.time_limit_seconds = PATIENCE
    assert (await run(5, "quick")).verdict is Verdict.CONFIRMED


async def test_cancelling_lets_a_sync_handler_roll_back(database, reporter):
    started, release, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @contextmanager
    def transaction():
        try:
            with database.sync_transaction() as tx:
                yield tx
        finally:
            ended.set()

    handlers = Handlers(name="handlers", sync_transaction=transaction)

    @handlers.on("order.created")
    def slow(event, tx):
        tx.rows.append(("effect", event.id))
        loop.call_soon_threadsafe(started.set)
        assert release.wait(PATIENCE)

    publishing = asyncio.create_task(handlers.publish([make_record()], reporter))
    async with asyncio.timeout(PATIENCE):
        await started.wait()
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
    release.set()
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    assert (database.rows, reporter.reports) == ([], [])


@pytest.mark.promise("G7", "H3")
async def test_an_event_whose_run_hangs_is_not_started_again(database, limit):  # R-C4
    handlers = made(database, concurrency=2, time_limit_seconds=0.05)
    reached, release, runs = threading.Event(), threading.Event(), []

    @handlers.on("order.created")
    def hang(event, tx):
        runs.append(event.id)
        tx.rows.append(("effect", event.id))
        if len(runs) == 1:
            reached.set()
            assert release.wait(PATIENCE)

    record, reporter = make_record(1), RecordingReporter()
    limit.fires_at(reached)
    assert (await outcome_of(handlers, record)).verdict is Verdict.FAILED
    try:
        async with asyncio.timeout(5), handlers._runtime.limiter.shared():
            await handlers.publish_alone(record, reporter)  # beside one that runs and does not end
            again = await outcome_of(handlers, record)
    except TimeoutError:
        release.set()
        pytest.fail("it was started again, alone, and waits for the others to end")
    for outcome in (reporter.outcome(record), again):
        assert outcome.verdict is Verdict.FAILED  # an attempt: it is buried by the rules
        assert "stuck in its thread since" in outcome.error
    assert reporter.begun == [record.id]  # the attempt was counted
    assert (runs, database.effects()) == (["event-1"], [])
    release.set()
    async with asyncio.timeout(PATIENCE):
        while handlers._runtime.threads.hanging:
            await asyncio.sleep(0.001)
    assert (await outcome_of(handlers, record)).verdict is Verdict.CONFIRMED
    assert (runs, database.effects()) == (["event-1"] * 2, [("effect", "event-1")])


def test_handlers_can_be_used_on_one_event_loop_after_another(database, limit):
    handlers = made(database, concurrency=1, time_limit_seconds=0.05)
    reached, release = threading.Event(), threading.Event()

    @handlers.on("order.created")
    def hang(event, tx):
        reached.set()
        assert release.wait(PATIENCE)

    async def hang_and_wait():
        limit.fires_at(reached)
        first = await outcome_of(handlers, make_record(1))
        return first.verdict, (await outcome_of(handlers, make_record(2))).verdict

    assert asyncio.run(hang_and_wait()) == (Verdict.FAILED, Verdict.MISCONFIGURED)
    release.set()
    for n in (3, 4):
        outcome = asyncio.run(outcome_of(handlers, make_record(n)))
        assert outcome.verdict is Verdict.CONFIRMED


@pytest.mark.promise("G7", "P2")
@pytest.mark.parametrize(
    ("is_running", "verdict"), [(True, Verdict.FAILED), (False, Verdict.MISCONFIGURED)]
)
def test_only_a_handler_that_hangs_itself_spends_the_attempts_of_its_event(is_running, verdict):
    hang = Hang(datetime(2026, 5, 1, tzinfo=UTC), "committing", is_running)
    outcome = thread_runs.hanging(hang)
    assert outcome.verdict is verdict
    assert "since 2026-05-01 00:00:00 UTC (committing)" in outcome.error


async def test_threads_that_were_closed_beside_a_hanging_one_can_be_used_again():
    threads, release = Threads(2, "t"), threading.Event()
    hanging = await threads.start(lambda: release.wait(PATIENCE), 1.0)
    threads.close()
    again = await threads.start(lambda: "done", 1.0)
    try:
        async with asyncio.timeout(5):
            assert await again == "done"
    finally:
        release.set()
    assert await hanging is True
    threads.close()


async def test_the_place_of_a_call_that_nobody_waits_for_is_free_again():
    threads = Threads(1, "t")
    (await threads.start(lambda: None, 1.0)).cancel()
    async with asyncio.timeout(PATIENCE):
        assert await (await threads.start(lambda: "done", PATIENCE)) == "done"
    threads.close()
