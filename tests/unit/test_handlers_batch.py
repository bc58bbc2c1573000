"""What a relay's batch becomes when events of different keys may share a transaction."""

import asyncio
import threading

import pytest

from postroom.broker import CONFIRMED, REPEAT, UNSENT, Outcome, Verdict
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.relay.relay import Relay
from postroom.errors import ConfigError
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.stores.memory import MemoryStore
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.sim.loop import virtual_time
from tests.unit.handler_database import PATIENCE, Database, made

KINDS = pytest.mark.parametrize("kind", ["async", "sync"])
ACCEPT = "accept handlers/charge"
BOOM = Outcome(Verdict.FAILED, "ValueError: boom")


@pytest.fixture
def database():
    return Database()


@pytest.fixture
def reporter():
    return RecordingReporter()


def charging(database, kind="async", broken=(), **options):
    handlers = made(database, **{"batch": 10, "concurrency": 1, **options})

    def charge(event, tx):
        tx.rows.append(("effect", event.id))
        if event.id in broken:
            raise ValueError("boom")

    async def async_charge(event, tx):
        charge(event, tx)

    handlers.on("order.created", name="charge")(async_charge if kind == "async" else charge)
    return handlers


def records_of(*names, **fields):
    """Records named like "a1": the first of key a."""
    return [make_record(n, id=name, key=name[0], **fields) for n, name in enumerate(names, 1)]


async def publish(handlers, batch, reporter):
    async with asyncio.timeout(PATIENCE):
        await handlers.publish(batch, reporter)
    return {record.id: outcome for record, outcome in reporter.reports}


@KINDS
@pytest.mark.promise("G4", "H1", "H2")
async def test_the_first_of_each_key_go_together_and_then_the_next(database, reporter, kind):
    batch = records_of("a1", "b1", "a2", "c1", "a3")
    outcomes = await publish(charging(database, kind), batch, reporter)
    assert outcomes == dict.fromkeys(["a1", "b1", "c1", "a2", "a3"], CONFIRMED)
    assert database.log == [
        "begin", ACCEPT, ACCEPT, ACCEPT, "look", "commit",
        "begin", ACCEPT, "look", "commit", "begin", ACCEPT, "look", "commit",
    ]  # fmt: skip
    assert reporter.begun == ["a1", "b1", "c1", "a2", "a3"]
    assert [row[1] for row in database.effects()] == ["a1", "b1", "c1", "a2", "a3"]


async def test_no_more_than_the_batch_go_together(database, reporter):
    await publish(charging(database, batch=2), records_of("a1", "b1", "c1", "d1", "e1"), reporter)
    assert [word for word in database.log if word in ("look", "commit")] == [
        "look", "commit", "look", "commit", "look", "commit",
    ]  # fmt: skip


async def test_they_are_shared_out_among_those_who_can_work(database, reporter):
    batch = records_of("a1", "b1", "c1", "d1", "e1", "f1", "g1")
    await publish(charging(database, concurrency=3), batch, reporter)
    accepts, counts = database.log.count(ACCEPT), database.log.count("look")
    assert (accepts, counts, database.log.count("commit")) == (7, 3, 3)  # 3, 3 and 1


async def test_one_at_a_time_is_the_default(database, reporter):
    assert Handlers().batch == 1
    await publish(charging(database, batch=1), records_of("a1", "b1"), reporter)
    assert database.log == ["begin", ACCEPT, "look", "commit"] * 2


@KINDS
@pytest.mark.promise("G7", "P3")
async def test_who_spoils_it_is_found_when_each_is_handled_by_itself(database, kind):
    handlers, batch = charging(database, kind, broken=["b1"]), records_of("a1", "b1", "c1", "b2")
    assert set((await publish(handlers, batch, RecordingReporter())).values()) == {UNSENT}
    assert database.rows == []
    database.log.clear()
    outcomes = await publish(handlers, batch, RecordingReporter())
    outcomes["b1"] = outcomes["b1"]._replace(traceback="")
    assert outcomes == {"a1": CONFIRMED, "b1": BOOM, "c1": CONFIRMED, "b2": UNSENT}
    alone, end = ["begin", ACCEPT], ["look", "commit"]
    assert database.log == [*alone, *end, *alone, "rollback", *alone, *end]
    database.log.clear()
    await publish(
        handlers, records_of("a2", "c2"), RecordingReporter()
    )  # their keys are not to blame
    assert database.log == ["begin", ACCEPT, ACCEPT, "look", "commit"]


async def test_only_so_many_are_remembered_to_be_handled_by_themselves(database):
    handlers = charging(database)
    handlers._runtime.part(str(n) for n in range(9_000))
    handlers._runtime.part(["one more"])
    assert len(handlers._runtime.run_alone) == 9_001
    handlers._runtime.part(str(n) for n in range(9_000, 10_009))
    assert list(handlers._runtime.run_alone)[:2] == ["10", "11"]


@pytest.mark.promise("G7")
async def test_what_has_failed_before_is_handled_alone(database, reporter):
    batch = [*records_of("a1", "b1"), *records_of("c1", attempts=1)]
    await publish(charging(database), batch, reporter)
    assert database.log == [
        "begin", ACCEPT, ACCEPT, "look", "commit", "begin", ACCEPT, "look", "commit",
    ]  # fmt: skip


async def test_handlers_on_the_loop_and_in_threads_do_not_mix(database, reporter):
    handlers = made(database, batch=10, concurrency=1)

    @handlers.on("order.created", name="loop")
    async def on_the_loop(event, tx): ...

    @handlers.on("order.paid", name="thread")
    def in_a_thread(event, tx): ...

    others = [make_record(n, id=f"p{n}", key=f"p{n}", type="order.paid") for n in (7, 8)]
    outcomes = await publish(handlers, [*records_of("a1", "b1"), *others], reporter)
    assert set(outcomes.values()) == {CONFIRMED}
    begin, end = ["begin"], ["look", "commit"]
    here, there = ["accept handlers/loop"] * 2, ["accept handlers/thread"] * 2
    assert database.log == begin + here + end + begin + there + end


@pytest.mark.promise("L3", "H1")
async def test_what_may_not_begin_does_not_run_and_the_others_do(database, reporter):
    reporter.lost = {"b1"}
    outcomes = await publish(charging(database), records_of("a1", "b1", "c1"), reporter)
    assert outcomes == {"a1": CONFIRMED, "b1": UNSENT, "c1": CONFIRMED}
    assert [row[1] for row in database.effects()] == ["a1", "c1"]
    reporter.lost = {"d1", "e1"}
    outcomes = await publish(charging(database), records_of("d1", "e1"), reporter)
    assert (outcomes["d1"], outcomes["e1"]) == (UNSENT, UNSENT)
    assert len(database.effects()) == 2


@pytest.mark.promise("P2")
async def test_after_an_outage_nothing_further_is_begun(database, reporter):
    database.open_error = ConnectionError("no route to host")
    outcomes = await publish(
        charging(database, batch=2), records_of("a1", "b1", "c1", "a2"), reporter
    )
    verdicts = {name: outcome.verdict for name, outcome in outcomes.items()}
    away = Verdict.OUTAGE
    assert verdicts == {"a1": away, "b1": away, "c1": Verdict.UNSENT, "a2": Verdict.UNSENT}
    assert reporter.begun == ["a1", "b1"]


@pytest.mark.promise("L6", "G4")
@KINDS
async def test_what_may_no_longer_start_does_not_and_all_are_given_back(database, reporter, kind):
    """The lane of the third is lost while the first is handled."""
    handlers = made(database, batch=10, concurrency=1)

    def charge(event, tx):
        tx.rows.append(("effect", event.id))
        reporter.lost = {"c1"}

    async def async_charge(event, tx):
        charge(event, tx)

    handlers.on("order.created", name="charge")(async_charge if kind == "async" else charge)
    outcomes = await publish(handlers, records_of("a1", "b1", "c1", "d1"), reporter)
    assert set(outcomes.values()) == {UNSENT}
    assert database.log == ["begin", ACCEPT, ACCEPT, "rollback"]
    assert database.rows == []
    fifth = RecordingReporter()
    fifth.may_go_on = lambda record: False  # lost as soon as it was begun: nobody's outage
    assert set((await publish(handlers, records_of("e1", "f1"), fifth)).values()) == {UNSENT}


@pytest.mark.promise("G6")
async def test_a_commit_that_nobody_knows_of_is_looked_up(database):
    database.commit_error = ConnectionError("gone")
    handlers, batch = charging(database), records_of("a1", "b1")
    assert set((await publish(handlers, batch, RecordingReporter())).values()) == {UNSENT}
    database.commit_error = None
    database.rows = [("inbox", "handlers/charge", record.id) for record in batch]  # it was done
    outcomes = await publish(handlers, batch, RecordingReporter())
    assert set(outcomes.values()) == {REPEAT}
    assert database.effects() == []


@pytest.mark.promise("G7")
def test_those_that_take_too_long_together_are_handled_by_themselves(database, reporter):
    handlers = made(database, batch=10, concurrency=1, time_limit_seconds=2.0)

    @handlers.on("order.created", name="charge")
    async def charge(event, tx):
        tx.rows.append(("effect", event.id))
        await asyncio.sleep(0.9)

    batch = records_of("a1", "b1", "c1", "d1")
    with virtual_time() as loop:
        outcomes = loop.run_until_complete(publish(handlers, batch, reporter))
        assert set(outcomes.values()) == {UNSENT}
        assert loop.time() == 2.0
        outcomes = loop.run_until_complete(publish(handlers, batch, RecordingReporter()))
    assert set(outcomes.values()) == {CONFIRMED}


@pytest.mark.promise("G7")
async def test_those_whose_notes_a_hanging_thread_holds_wait_and_are_not_charged(database):
    handlers = made(database, batch=10, concurrency=2, time_limit_seconds=1.0)
    hang = threading.Event()

    @handlers.on("order.created", name="charge")
    def charge(event, tx):
        tx.rows.append(("effect", event.id))
        if event.id == "c1":
            hang.wait(PATIENCE)

    batch, reporter = records_of("a1", "b1", "c1", "d1"), RecordingReporter()
    outcomes = await publish(handlers, [*batch, *records_of("e1", "f1", "g1", "h1")], reporter)
    assert [outcomes[name[0] + "1"].verdict for name in "abcd"] == [Verdict.UNSENT] * 4
    again = RecordingReporter()
    outcomes = await publish(handlers, [batch[0], batch[1], batch[3]], again)
    assert (outcomes["a1"].verdict, outcomes["b1"].verdict) == (Verdict.MISCONFIGURED,) * 2
    assert "a handler is stuck in its thread" in outcomes["a1"].error
    assert outcomes["d1"] == CONFIRMED
    assert again.begun == ["d1"]
    hung = (await publish(handlers, [batch[2]], RecordingReporter()))["c1"]
    assert (hung.verdict, "stuck in its thread since" in hung.error) == (Verdict.FAILED, True)
    hang.set()
    async with asyncio.timeout(PATIENCE):
        while handlers._runtime.held:
            await asyncio.sleep(0.01)
    outcomes = await publish(handlers, batch[:2], RecordingReporter())
    assert set(outcomes.values()) == {CONFIRMED}
    assert sorted(row[1] for row in database.effects()) == [
        "a1", "b1", "d1", "e1", "f1", "g1", "h1",
    ]  # fmt: skip


async def test_a_handler_that_is_registered_meanwhile_parts_them(database, reporter):
    handlers = charging(database)
    begin = reporter.begin

    async def late(record):
        if not reporter.begun:
            handlers.on("order.created", name="second")(lambda event, tx: None)
        return await begin(record)

    reporter.begin = late
    outcomes = await publish(handlers, records_of("a1", "b1"), reporter)
    assert set(outcomes.values()) == {UNSENT}


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_is_one_or_more(batch):
    with pytest.raises(ConfigError, match=f"handlers: batch must be 1 or more, not {batch}"):
        Handlers(batch=batch)


@pytest.mark.promise("H1")
async def test_a_relay_that_stops_begins_with_no_further_event():
    store, handlers = MemoryStore(), Handlers(name="payments", concurrency=1)
    runs, reached, release = [], asyncio.Event(), asyncio.Event()

    @handlers.on("t")
    async def slow(event, tx):
        runs.append(event.id)
        reached.set()
        await release.wait()

    async with store.transaction() as tx:
        await Outbox().add_many(tx, [Event("t", id=f"e{n}", key=f"k{n}") for n in range(5)])
    relay = Relay(store, handlers, groups=1)
    await relay.start()
    async with asyncio.timeout(30):
        await reached.wait()
        stopping = asyncio.create_task(relay.stop())
        while not relay._context.stopping:
            await asyncio.sleep(0)
        release.set()
        await stopping
    assert len(runs) == 1
    found = [await store.get(f"e{n}") for n in range(5)]
    assert sorted((r.state, r.attempts) for r in found if r.id not in runs) == [("pending", 0)] * 4
