"""One call of publish, with a channel that answers as told: who goes when, and what is reported."""

from __future__ import annotations

import asyncio
from functools import wraps

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.outages import UnreachableError
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.brokers.rabbitmq.frames import Encoder, UnsendableError
from postroom.brokers.rabbitmq.message import Writer
from postroom.brokers.rabbitmq.publish_call import PublishCall
from postroom.brokers.rabbitmq.settings import RabbitSettings
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.sim.loop import SimLoop

WRITER = Writer(RabbitSettings(exchange="orders"))


def in_no_time(test):
    """Run a test on a loop whose time is virtual."""

    @wraps(test)
    def run():
        loop = SimLoop()
        try:
            loop.run_until_complete(test())
        finally:
            loop.close()

    return run


class Channel:
    """Keeps what is posted, wave by wave."""

    is_closed = False

    def __init__(self):
        self.waves = []
        self.posted = asyncio.Event()
        self.unsendable = set()
        self.stuck = False
        self._listener = None

    def listen(self, ear):
        self._listener = ear

    def pack(self, message):
        if message.record.id in self.unsendable:
            raise UnsendableError("too large")
        return message.record.id

    async def post(self, packed):
        if self.stuck:
            await asyncio.Event().wait()
        self.waves.append([message for message, _ in packed])
        self.posted.set()

    async def wave(self, number):
        """Wait for a wave of messages."""
        async with asyncio.timeout(60):
            while len(self.waves) <= number:
                self.posted.clear()
                await self.posted.wait()
        return self.waves[number]

    def say(self, what, message, *more):
        if self._listener is not None:
            getattr(self._listener, what)(message, *more)

    def close(self, error):
        self._listener.closed(error)


class Trip:
    """An call under way."""

    def __init__(self, batch, *, compose=None, confirm_seconds=15.0, blocked=False):
        self.reporter, self.channel = RecordingReporter(), Channel()
        self.call = PublishCall(
            batch,
            self.reporter,
            compose or (lambda record: WRITER.write(record, "outbox")),
            confirm_seconds=confirm_seconds,
            blocked=lambda: blocked,
        )

    async def __aenter__(self):
        self.task = asyncio.create_task(self.call.run(self.channel))
        return self

    async def __aexit__(self, kind, *_):
        if kind is None:
            async with asyncio.timeout(60):
                await self.task
        else:
            self.task.cancel()

    def verdicts(self):
        return {record.id: outcome.verdict.value for record, outcome in self.reporter.reports}


def batch(*keys, **facts):
    return [make_record(n, id=f"{key}{n}", key=key, **facts) for n, key in enumerate(keys, 1)]


def ids(wave):
    return [message.record.id for message in wave]


@pytest.mark.promise("Q3", "P1")
@in_no_time
async def test_one_of_each_key_is_in_flight_and_keys_do_not_wait_for_each_other():
    async with Trip(batch("a", "b", "a", "b", "a")) as trip:
        first = await trip.channel.wave(0)
        assert ids(first) == ["a1", "b2"]
        trip.channel.say("confirmed", first[0])
        second = await trip.channel.wave(1)
        assert ids(second) == ["a3"]
        trip.channel.say("confirmed", second[0])
        third = await trip.channel.wave(2)
        assert ids(third) == ["a5"]
        trip.channel.say("confirmed", third[0])
        trip.channel.say("confirmed", first[1])
        fourth = await trip.channel.wave(3)
        assert ids(fourth) == ["b4"]
        trip.channel.say("confirmed", fourth[0])
    assert trip.verdicts() == dict.fromkeys(["a1", "a3", "a5", "b2", "b4"], "confirmed")
    assert trip.call.is_clean


@in_no_time
async def test_what_is_confirmed_together_is_told_together_and_goes_on_together():
    async with Trip(batch("a", "b", "c", "a", "b", "c")) as trip:
        told = []
        trip.reporter.confirm = lambda records, _=(): told.append([r.id for r in records])
        for message in await trip.channel.wave(0):
            trip.channel.say("confirmed", message)
        second = await trip.channel.wave(1)
        assert ids(second) == ["a4", "b5", "c6"]
        for message in second:
            trip.channel.say("confirmed", message)
    assert told == [["a1", "b2", "c3"], ["a4", "b5", "c6"]]


@pytest.mark.promise("Q1", "P2")
@in_no_time
async def test_a_returned_message_stops_its_key_and_says_where_it_was_to_go():
    async with Trip(batch("a", "b", "a", topic="order.created")) as trip:
        a, b = await trip.channel.wave(0)
        trip.channel.say("returned", a, "312 NO_ROUTE")
        trip.channel.say("confirmed", a)  # RabbitMQ acks what it returned: that is no confirm
        trip.channel.say("confirmed", b)
    assert trip.verdicts() == {"a1": "misconfigured", "a3": "unsent", "b2": "confirmed"}
    assert trip.reporter.outcome(a.record).error == (
        "unroutable (312 NO_ROUTE): no queue is bound to the exchange 'orders' for the routing "
        "key 'order.created'. Bind one; the event and its key wait until then"
    )
    assert trip.call.is_clean


@pytest.mark.promise("P2")
@in_no_time
async def test_a_nack_while_others_are_taken_is_this_routing_keys_trouble():
    async with Trip(batch("full", "free", "full")) as trip:
        full, free = await trip.channel.wave(0)
        trip.channel.say("confirmed", free)  # RabbitMQ may tell later ones first
        trip.channel.say("refused", full)
    assert trip.verdicts() == {"full1": "misconfigured", "full3": "unsent", "free2": "confirmed"}
    assert "refused (nack): a queue behind the exchange 'orders'" in (
        trip.reporter.outcome(full.record).error
    )
    assert trip.call.is_clean


@pytest.mark.promise("P2")
@in_no_time
async def test_nacks_around_a_message_that_is_taken_are_no_outage():
    """The last one comes after everything that was taken, and the queues flow all the same."""
    async with Trip(batch("full", "free", "too full")) as trip:
        full, free, too_full = await trip.channel.wave(0)
        trip.channel.say("refused", full)
        trip.channel.say("confirmed", free)
        trip.channel.say("refused", too_full)
    assert trip.verdicts() == {
        "full1": "misconfigured", "free2": "confirmed", "too full3": "misconfigured",
    }  # fmt: skip


@pytest.mark.promise("P2")
@in_no_time
async def test_a_nack_after_which_nothing_is_taken_is_an_outage():
    async with Trip(batch("a", "b", "c")) as trip:
        a, b, c = await trip.channel.wave(0)
        trip.channel.say("refused", b)
        trip.channel.say("confirmed", a)  # written before: it came just in
        trip.channel.say("refused", c)
    assert trip.verdicts() == {"a1": "confirmed", "b2": "outage", "c3": "outage"}


@pytest.mark.promise("Q4")
@in_no_time
async def test_a_closed_channel_leaves_what_is_in_flight_unknown():
    async with Trip(batch("a", "b", "c", "b")) as trip:
        a, b, c = await trip.channel.wave(0)
        trip.channel.say("confirmed", a)
        trip.channel.close(RuntimeError("NOT_FOUND - no exchange"))
    assert trip.verdicts() == {"a1": "confirmed", "b2": "unknown", "b4": "unsent", "c3": "unknown"}
    assert "NOT_FOUND - no exchange" in trip.reporter.outcome(b.record).error
    assert not trip.call.is_clean
    trip.channel.say("confirmed", c)
    assert trip.verdicts()["c3"] == "unknown"


@pytest.mark.promise("P2", "P3")
@in_no_time
async def test_what_is_not_confirmed_in_time_is_unknown_and_the_rest_is_not_sent():
    async with Trip(batch("a", "b", "a", "b"), confirm_seconds=15.0) as trip:
        _, b = await trip.channel.wave(0)
        trip.channel.say("confirmed", b)
        await trip.channel.wave(1)
    assert trip.verdicts() == {"a1": "unknown", "a3": "unsent", "b2": "confirmed", "b4": "unknown"}
    assert trip.call.late
    assert not trip.call.is_clean


@pytest.mark.promise("Q2")
@in_no_time
async def test_after_one_is_late_nothing_more_is_sent_on_its_channel():
    async with Trip(batch("late", "a", "a", "a"), confirm_seconds=15) as trip:
        _, a = await trip.channel.wave(0)
        await asyncio.sleep(1)
        trip.channel.say("confirmed", a)
        (second,) = await trip.channel.wave(1)
        await trip.reporter.heard([make_record(1, id="late1")])
        trip.channel.say("confirmed", second)
    assert trip.verdicts() == {
        "late1": "unknown", "a2": "confirmed", "a3": "confirmed", "a4": "unsent",
    }  # fmt: skip
    assert [ids(wave) for wave in trip.channel.waves] == [["late1", "a2"], ["a3"]]


@pytest.mark.promise("Q4", "P2")
@in_no_time
async def test_what_is_late_because_the_connection_is_blocked_is_an_outage():
    async with Trip(batch("a", "a"), confirm_seconds=15.0, blocked=True) as trip:
        pass
    assert trip.verdicts() == {"a1": "outage", "a2": "unsent"}
    assert "RabbitMQ has blocked this connection" in trip.reporter.reports[0][1].error
    assert not trip.call.is_clean


@in_no_time
async def test_a_write_that_hangs_is_given_up():
    trip = Trip(batch("a", "b"), confirm_seconds=15.0)
    trip.channel.stuck = True
    async with trip:
        pass
    assert trip.verdicts() == {"a1": "unknown", "b2": "unknown"}


@in_no_time
async def test_a_long_run_of_one_key_ends_in_good_time_and_its_rest_comes_back():
    async with Trip(batch(*["a"] * 1_000), confirm_seconds=15) as trip:
        for n in range(8):  # a second each, and no new one after half the time
            (message,) = await trip.channel.wave(n)
            await asyncio.sleep(1)
            trip.channel.say("confirmed", message)
    told = [outcome.verdict for _, outcome in trip.reporter.reports]
    assert told == [Verdict.CONFIRMED] * 8 + [Verdict.UNSENT] * 992
    assert trip.call.is_clean


@in_no_time
async def test_what_cannot_be_sent_is_rejected_and_its_neighbours_are_not():
    trip = Trip(batch("big", "a", "big"))
    trip.channel.unsendable = {"big1"}
    async with trip:
        (a,) = await trip.channel.wave(0)
        trip.channel.say("confirmed", a)
    assert trip.verdicts() == {"big1": "rejected", "big3": "unsent", "a2": "confirmed"}
    assert trip.call.is_clean


@in_no_time
async def test_what_has_no_address_is_reported_as_it_was_judged():
    def compose(record):
        if record.id == "a3":
            return Outcome(Verdict.MISCONFIGURED, "no such exchange")
        return WRITER.write(record, "outbox")

    async with Trip(batch("a", "b", "a", "a"), compose=compose) as trip:
        for message in await trip.channel.wave(0):
            trip.channel.say("confirmed", message)
    assert trip.verdicts() == {
        "a1": "confirmed", "b2": "confirmed", "a3": "misconfigured", "a4": "unsent",
    }  # fmt: skip


@in_no_time
async def test_nothing_to_send_is_no_wait():
    async with Trip(batch("a"), compose=lambda _: Outcome(Verdict.MISCONFIGURED, "no")) as trip:
        pass
    assert trip.verdicts() == {"a1": "misconfigured"}
    assert trip.channel.waves == []


@pytest.mark.promise("Q2")
@in_no_time
async def test_a_cancelled_call_hears_and_reports_nothing_more():
    trip = Trip(batch("a", "a"))
    async with trip:
        (message,) = await trip.channel.wave(0)
        trip.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trip.task
        trip.task = asyncio.create_task(asyncio.sleep(0))
    trip.channel.say("confirmed", message)
    assert trip.reporter.reports == []
    assert not trip.call.is_clean


@pytest.mark.promise("G7")
@in_no_time
async def test_what_no_message_can_hold_costs_no_neighbour():
    """Rows of strangers: text without bytes, names and ids beyond 255 bytes."""
    good = batch("a", "b", "c")
    surrogate = make_record(4, id="surrogate", key="d", correlation_id="\ud800")
    hostile = [
        surrogate,
        make_record(5, id="name", key="e", headers_json='{"' + "é" * 128 + '": "1"}'),
        make_record(6, id="i" * 256, key="f"),
        make_record(7, id="type", key="g", type="é" * 128),
        make_record(8, id="key", key="h", topic="é" * 128),
        make_record(9, id="correlation", key="i", correlation_id="é" * 128),
        make_record(10, id="many", key="j", headers_json='{"x": "' + "y" * 140_000 + '"}'),
    ]
    async with Trip([good[0], *hostile[:4], good[1], *hostile[4:], good[2]]) as trip:
        trip.channel.pack = Encoder(1, 131_072).encode
        sent = await trip.channel.wave(0)
        assert ids(sent) == ["a1", "b2", "c3"]
        for message in sent:
            trip.channel.say("confirmed", message)
    verdicts = trip.verdicts()
    assert {verdicts[record.id] for record in hostile} == {"rejected"}
    assert {verdicts[record.id] for record in good} == {"confirmed"}
    assert "it cannot be encoded as an AMQP message" in trip.reporter.outcome(surrogate).error


class Link:
    """A connection on which nothing is confirmed."""

    is_broken = False

    def __init__(self, *, responds):
        self.responds, self.asked = responds, 0

    def is_blocked(self):
        return False

    async def missing(self, exchanges):
        return {}

    async def take(self):
        return Channel()

    def give_back(self, channel, *, clean):
        assert not clean

    async def ready(self):
        self.asked += 1
        if not self.responds:
            raise UnreachableError("RabbitMQ did not answer within 10 s")


@pytest.mark.promise("P2", "Q4")
@pytest.mark.parametrize("responds", [True, False])
async def test_a_suspect_without_a_confirm_waits_only_if_rabbitmq_responds(responds):
    """Otherwise RabbitMQ hangs: that is an outage, and no queue is to blame."""
    broker = RabbitBroker("amqp://localhost?exchange=orders&confirm_seconds=0.01")
    broker._suspect_link = link = Link(responds=responds)
    record, reporter = make_record(1), RecordingReporter()
    if responds:
        await broker.publish_alone(record, reporter)
        assert reporter.verdict(record) is Verdict.MISCONFIGURED
        assert "although RabbitMQ responds" in reporter.outcome(record).error
    else:
        with pytest.raises(UnreachableError, match="did not answer"):
            await broker.publish_alone(record, reporter)
        assert reporter.reports == []
    assert link.asked == 1
