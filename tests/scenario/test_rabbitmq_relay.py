"""A real relay on an SQLite outbox, and a RabbitMQ that does not take everything."""

from __future__ import annotations

import asyncio

import pytest

from postroom.broker import Verdict
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.event import Event
from postroom.observer import Alarm
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.scenario.place import until
from tests.scenario.rabbit import AttentivePlace, Tap, first_seen_by_key, fresh

pytestmark = pytest.mark.slow
KEYS = [f"order-{n}" for n in range(25)]


@pytest.fixture
def name():
    return fresh("relay")


@pytest.fixture
async def tap(rabbitmq_url, name):
    async with Tap(rabbitmq_url) as tap:
        await tap.exchange(name)
        await tap.queue(name)
        await tap.bind(name, name, "order.*")
        yield tap


@pytest.fixture
async def place(tmp_path):
    made = AttentivePlace(tmp_path / "app.db")
    await made.open()
    yield made
    await made.close()


def events(count, first=0, **facts):
    """Events that go round over the keys."""
    return [
        Event(
            "order.made",
            {"n": n},
            id=f"e{n:04}",
            key=KEYS[n % len(KEYS)],
            topic="order.made",
            **facts,
        )
        for n in range(first, first + count)
    ]


def ids_of(key, written):
    return [event.id for event in written if event.key == key]


@pytest.mark.req("S5.2", "S5.3")
@pytest.mark.promise("G2", "G4", "G7", "Q1", "P1", "P2")
async def test_an_unroutable_event_among_hundreds(rabbitmq_url, name, tap, place, notes):
    """It waits, and its key with it; the others go. Once a queue is bound it goes, in its place."""
    written = events(500)
    lost = 7 * len(KEYS)  # an event of the first key, with seven before it and twelve behind
    written[lost] = Event(
        "order.made", {"n": lost}, id=f"e{lost:04}", key=KEYS[0], topic="nobody.listens"
    )
    behind = ids_of(KEYS[0], written)[7:]
    await place.write(*written)
    broker = RabbitBroker(rabbitmq_url, exchange=name)
    async with place.relay(broker, observers=[notes]) as relay:
        await until(lambda: relay.counts.done == 500 - len(behind), 60)
        await until(lambda: notes.of(Alarm))
        waiting = await place.record(written[lost].id)
        assert (waiting.state, waiting.attempts) == ("failed", 0)
        assert "no queue is bound to the exchange" in waiting.last_error
        assert "for the routing key 'nobody.listens'" in waiting.last_error
        assert "nobody.listens" in notes.of(Alarm)[0].error
        states = await place.states()
        assert {i for i, state in states.items() if state != "done"} == set(behind)
        assert len(await tap.drain(name)) == 500 - len(behind)

        await place.write(*events(50, first=500))
        await until(lambda: relay.counts.done == 550 - len(behind) - 2, 60)

        await tap.bind(name, name, "nobody.listens")
        await until(place.all_done, 60)
        assert relay.counts.repeated == 0
    seen = first_seen_by_key(await tap.drain(name))
    everything = written + events(50, first=500)
    assert seen == {key: ids_of(key, everything) for key in KEYS}
    assert len(tap.seen) == 550
    assert await place.attempts() == {}


@pytest.mark.promise("G2", "G4", "G7", "Q4", "P3")
async def test_a_poison_event_among_hundreds_is_found_and_buries_nobody_else(
    rabbitmq_url, name, tap, place
):
    """RabbitMQ closes the channel over one message, for all that are in flight on it."""
    written = events(500)
    written[200] = Event(
        "order.made", id="poison", key=KEYS[0], topic="order.made", headers={"CC": "not a list"}
    )
    await place.write(*written)
    async with place.relay(RabbitBroker(rabbitmq_url, exchange=name)) as relay:
        await until(lambda: relay.counts.dead == 1, 60)
        await until(lambda: relay.counts.done == 499, 60)
    dead = await place.record("poison")
    assert (dead.state, dead.attempts) == ("dead", 1)
    assert "unacceptable_type_in_header" in dead.last_error
    states = await place.states()
    assert [i for i, state in states.items() if state != "done"] == ["poison"]
    assert await place.attempts() == {"poison": 1}
    others = [event for event in written if event.id != "poison"]
    assert first_seen_by_key(await tap.drain(name)) == {key: ids_of(key, others) for key in KEYS}


@pytest.mark.promise("G4", "G7", "Q4", "B6")
async def test_a_strict_poison_event_blocks_its_key_and_no_other(
    rabbitmq_url, name, tap, place, notes
):
    """It is never buried, and tried again and again: the others must not feel it."""
    await place.write(
        Event("made", id="s1", key="strict", topic="order.a", headers={"BCC": "not a list"}),
        Event("made", id="s2", key="strict", topic="order.a"),
        outbox=place.strict,
    )
    broker = RabbitBroker(rabbitmq_url, exchange=name)
    async with place.relay(broker, observers=[notes]) as relay:

        async def tried(times):
            return (await place.record("s1")).attempts >= times

        await until(lambda: tried(2), 60)
        await place.write(*events(300))
        await until(lambda: relay.counts.done == 300, 60)
        await until(lambda: tried(5), 60)
        assert relay.counts.dead == 0
    messages = await tap.drain(name)
    assert first_seen_by_key(messages) == {key: ids_of(key, events(300)) for key in KEYS}
    assert len(messages) == 300  # once it is known, it takes no neighbour along


@pytest.mark.promise("P1", "P2")
async def test_a_full_queue_beside_one_that_is_not(rabbitmq_url, name, tap, place):
    """Two queues: what goes to the full one waits, without an attempt; the rest goes on."""
    full = fresh("full")
    await tap.queue(full, kind="classic", x_max_length=5, x_overflow="reject-publish")
    await tap.bind(full, name, "slow.*")
    slow = [Event("made", id=f"s{n:02}", key=f"slow-{n % 10}", topic="slow.a") for n in range(40)]
    fast = events(400)
    mixed = [event for n in range(40) for event in (slow[n], *fast[n * 10 : n * 10 + 10])]
    await place.write(*mixed)
    async with place.relay(RabbitBroker(rabbitmq_url, exchange=name)):
        await until(lambda: all_in(tap, name, 400), 60)
        taken = Tap(rabbitmq_url)
        async with taken:
            await until(lambda: all_in(taken, full, 40), 60)
        await until(place.all_done, 60)
    assert first_seen_by_key(tap.seen) == {key: ids_of(key, fast) for key in KEYS}
    keys = [f"slow-{n}" for n in range(10)]
    assert first_seen_by_key(taken.seen) == {key: ids_of(key, slow) for key in keys}
    assert await place.attempts() == {}


async def all_in(tap, queue, count):
    return len(set(m.message_id for m in await tap.drain(queue))) == count


@pytest.mark.promise("P1", "P2", "P3")
async def test_a_queue_that_hangs_stops_no_other_and_costs_no_attempt(own_server, tmp_path, notes):
    """The process of one queue stands still, as one without its quorum does: no confirm comes."""
    server = own_server("rabbitmq")
    place = AttentivePlace(tmp_path / "app.db")
    await place.open()
    async with Tap(server.url) as tap:
        await tap.queue("free", kind="classic")
        await tap.queue("hangs", kind="classic")
        find = '{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"hangs">>)),'
        await asyncio.to_thread(server.ctl, "eval", f"{find} sys:suspend(amqqueue:get_pid(Q)).")
        stuck = [Event("made", id=f"s{n}", key=f"s-{n % 2}", topic="hangs") for n in range(4)]
        free = [Event("made", id=f"f{n:03}", key=KEYS[n % 25], topic="free") for n in range(200)]
        await place.write(*stuck, *free)
        broker = RabbitBroker(server.url, confirm_seconds=0.5)
        async with place.relay(broker, observers=[notes], misconfigured_seconds=1) as relay:
            await until(lambda: relay.counts.done == 200, 60)
            await until(lambda: notes.of(Alarm), 60)
            assert "a queue behind the default exchange is stuck, or has lost its quorum" in (
                notes.of(Alarm)[0].error
            )
            await asyncio.to_thread(server.ctl, "eval", f"{find} sys:resume(amqqueue:get_pid(Q)).")
            await until(place.all_done, 60)
        assert await place.attempts() == {}
        hung = first_seen_by_key(await tap.drain("hangs"))
        assert hung == {"s-0": ["s0", "s2"], "s-1": ["s1", "s3"]}
        assert first_seen_by_key((await tap.drain("free"))[-200:]) == {
            key: ids_of(key, free) for key in KEYS
        }
    await place.close()


@pytest.mark.promise("P2", "G7")
async def test_a_message_that_is_too_large_for_this_server(own_server):
    server = own_server("rabbitmq")
    server.ctl("eval", "application:set_env(rabbit, max_message_size, 50000).")
    async with Tap(server.url) as tap:
        await tap.queue("small")
        broker = RabbitBroker(server.url)
        await broker.open()
        reporter = RecordingReporter()
        records = [make_record(n, id=f"e{n}", key=f"k{n}", topic="small") for n in range(50)]
        large = records[25] = records[25]._replace(payload=b"x" * 60_000)
        await broker.publish(records, reporter)
        unknown = [r for r in records if reporter.verdict(r) is Verdict.UNKNOWN]
        assert large in unknown
        reporter.reports.clear()
        for record in unknown:
            await broker.publish_alone(record, reporter)
        assert reporter.verdict(large) is Verdict.REJECTED
        assert "message size 60000 is larger than configured max size 50000" in (
            reporter.outcome(large).error
        )
        assert {m.message_id for m in await tap.drain("small")} == {
            r.id for r in records if r is not large
        }
        await broker.close()
