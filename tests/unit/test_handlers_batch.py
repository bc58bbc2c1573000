"""What a relay's batch becomes when events of different keys may share a transaction."""

import asyncio

import pytest

from postroom.broker import CONFIRMED, UNSENT, Outcome, Verdict
from postroom.brokers.handlers import Handlers
from postroom.errors import ConfigError
from postroom.testing.desk import RecordingDesk, make_record
from tests.sim.loop import virtual_time
from tests.unit.handler_database import PATIENCE, Database, made

KINDS = pytest.mark.parametrize("kind", ["async", "sync"])
ACCEPT = "accept handlers/charge"
BOOM = Outcome(Verdict.FAILED, "ValueError: boom")


@pytest.fixture
def database():
    return Database()


@pytest.fixture
def desk():
    return RecordingDesk()


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


async def publish(handlers, batch, desk):
    async with asyncio.timeout(PATIENCE):
        await handlers.publish(batch, desk)
    return {record.id: outcome for record, outcome in desk.reports}


@KINDS
@pytest.mark.promise("G4", "H1", "H2")
async def test_the_first_of_each_key_go_together_and_then_the_next(database, desk, kind):
    batch = records_of("a1", "b1", "a2", "c1", "a3")
    outcomes = await publish(charging(database, kind), batch, desk)
    assert outcomes == dict.fromkeys(["a1", "b1", "c1", "a2", "a3"], CONFIRMED)
    assert database.log == [
        "begin", ACCEPT, ACCEPT, ACCEPT, "count", "commit",
        "begin", ACCEPT, "commit", "begin", ACCEPT, "commit",
    ]  # fmt: skip
    assert desk.begun == ["a1", "b1", "c1", "a2", "a3"]
    assert [row[1] for row in database.effects()] == ["a1", "b1", "c1", "a2", "a3"]


async def test_no_more_than_the_batch_go_together(database, desk):
    await publish(charging(database, batch=2), records_of("a1", "b1", "c1", "d1", "e1"), desk)
    assert [word for word in database.log if word in ("count", "commit")] == [
        "count", "commit", "count", "commit", "commit",
    ]  # fmt: skip


async def test_they_are_shared_out_among_those_who_can_work(database, desk):
    batch = records_of("a1", "b1", "c1", "d1", "e1", "f1", "g1")
    await publish(charging(database, concurrency=3), batch, desk)
    accepts, counts = database.log.count(ACCEPT), database.log.count("count")
    assert (accepts, counts, database.log.count("commit")) == (7, 2, 3)  # 3, 3 and 1


async def test_one_at_a_time_is_the_default(database, desk):
    assert Handlers().batch == 1
    await publish(charging(database, batch=1), records_of("a1", "b1"), desk)
    assert database.log == ["begin", ACCEPT, "commit"] * 2


@KINDS
@pytest.mark.promise("G7", "P3")
async def test_who_spoils_it_is_found_and_the_others_are_done_in_the_same_attempt(
    database, desk, kind
):
    batch = records_of("a1", "b1", "c1", "b2", "c2")
    outcomes = await publish(charging(database, kind, broken=["b1"]), batch, desk)
    assert outcomes == {
        "a1": CONFIRMED, "b1": BOOM, "c1": CONFIRMED, "b2": UNSENT, "c2": CONFIRMED,
    }  # fmt: skip
    assert sorted(desk.begun) == ["a1", "b1", "c1", "c2"]
    assert [row[1] for row in database.effects()] == ["a1", "c1", "c2"]


@pytest.mark.promise("G7")
async def test_what_has_failed_before_has_no_company(database, desk):
    batch = [*records_of("a1", "b1"), *records_of("c1", attempts=1)]
    await publish(charging(database), batch, desk)
    assert database.log == [
        "begin", ACCEPT, ACCEPT, "count", "commit", "begin", ACCEPT, "commit",
    ]  # fmt: skip


async def test_handlers_on_the_loop_and_in_threads_do_not_mix(database, desk):
    handlers = made(database, batch=10, concurrency=1)

    @handlers.on("order.created", name="loop")
    async def on_the_loop(event, tx): ...

    @handlers.on("order.paid", name="thread")
    def in_a_thread(event, tx): ...

    others = [make_record(n, id=f"p{n}", key=f"p{n}", type="order.paid") for n in (7, 8)]
    outcomes = await publish(handlers, [*records_of("a1", "b1"), *others], desk)
    assert set(outcomes.values()) == {CONFIRMED}
    begin, end = ["begin"], ["count", "commit"]
    here, there = ["accept handlers/loop"] * 2, ["accept handlers/thread"] * 2
    assert database.log == begin + here + end + begin + there + end


@pytest.mark.promise("L3", "H1")
async def test_what_may_not_begin_does_not_run_and_the_others_do(database, desk):
    desk.lost = {"b1"}
    outcomes = await publish(charging(database), records_of("a1", "b1", "c1"), desk)
    assert outcomes == {"a1": CONFIRMED, "b1": UNSENT, "c1": CONFIRMED}
    assert [row[1] for row in database.effects()] == ["a1", "c1"]
    desk.lost = {"d1", "e1"}
    outcomes = await publish(charging(database), records_of("d1", "e1"), desk)
    assert (outcomes["d1"], outcomes["e1"]) == (UNSENT, UNSENT)
    assert len(database.effects()) == 2


@pytest.mark.promise("P2")
async def test_after_an_outage_nothing_further_is_begun(database, desk):
    database.open_error = ConnectionError("no route to host")
    outcomes = await publish(charging(database, batch=2), records_of("a1", "b1", "c1", "a2"), desk)
    verdicts = {name: outcome.verdict for name, outcome in outcomes.items()}
    away = Verdict.OUTAGE
    assert verdicts == {"a1": away, "b1": away, "c1": Verdict.UNSENT, "a2": Verdict.UNSENT}
    assert desk.begun == ["a1", "b1"]


@pytest.mark.promise("G6")
async def test_a_commit_that_nobody_knows_of_is_looked_up(database, desk):
    """The effects are there: alone, each is a repeat."""
    database.commit_error = ConnectionError("gone")
    handlers, batch = charging(database), records_of("a1", "b1")
    database.rows = [("inbox", "handlers/charge", record.id) for record in batch]
    ask = database.transaction

    def one_lost_reply():
        tx = ask()
        database.log.append("asked")
        if database.log.count("asked") > 1:
            database.commit_error = None
        return tx

    handlers._transaction = one_lost_reply
    outcomes = await publish(handlers, batch, desk)
    assert {outcome.verdict for outcome in outcomes.values()} == {Verdict.CONFIRMED}
    assert database.effects() == []


@pytest.mark.promise("H1")
def test_who_has_no_turn_within_the_limit_is_given_back(database, desk):
    """Together they take longer than the limit, and so do two of them one after the other."""
    handlers = made(database, batch=10, concurrency=1, time_limit_seconds=2.0)

    @handlers.on("order.created", name="charge")
    async def charge(event, tx):
        tx.rows.append(("effect", event.id))
        await asyncio.sleep(1.5)

    with virtual_time() as loop:
        outcomes = loop.run_until_complete(
            publish(handlers, records_of("a1", "b1", "c1", "d1", "c2"), desk)
        )
    done = ["a1", "b1"]
    assert outcomes == {**dict.fromkeys(done, CONFIRMED), "c1": UNSENT, "d1": UNSENT, "c2": UNSENT}
    assert [row[1] for row in database.effects()] == done


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_is_one_or_more(batch):
    with pytest.raises(ConfigError, match=f"handlers: batch must be 1 or more, not {batch}"):
        Handlers(batch=batch)
