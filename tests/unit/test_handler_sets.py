"""Two services that use one stream or one consumer name in one database are noticed."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from postroom.engine.consumer.consumer import Consumer
from postroom.engine.handler_sets import DEPLOYMENT_SECONDS, HandlerSets, handlers_of
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.relay.relay import Relay
from postroom.observer import Alarm, OtherHandlers
from postroom.sources.memory import MemorySource
from postroom.store import Member
from postroom.stores.memory import MemoryStore
from tests.scenario.place import until


class Notes:
    def __init__(self):
        self.alarms = []

    def observe(self, fact):
        if isinstance(fact, Alarm) and "name" in fact.about:
            self.alarms.append(fact)


def charge():
    handlers = Handlers(name="payments")

    @handlers.on("order.created", name="handle")
    async def charge(event, tx): ...

    return handlers


def mail():
    handlers = Handlers(name="payments")

    @handlers.on("order.created", name="handle")
    async def mail(event, tx): ...

    return handlers


@pytest.mark.promise("G6")
@pytest.mark.parametrize(
    ("other", "reads", "expected"),
    [
        pytest.param(mail, "mails", 1, id="another service"),
        pytest.param(charge, "charges", 0, id="another process of the service"),
        pytest.param(mail, "charges", 0, id="another version of the service"),
        pytest.param(charge, "charges, too", 0, id="another source of the service"),
    ],
)
async def test_another_service_with_the_same_name_is_an_alarm(other, reads, expected):  # R-A7
    store, first, second = MemoryStore(), Notes(), Notes()
    async with AsyncExitStack() as stack:
        for source, handlers, notes in (
            ("charges", charge(), first),
            (reads, other(), second),
            ("charges", charge(), Notes()),
        ):
            consumer = Consumer(
                MemorySource(name=source), store, handlers, observers=[notes], lease_seconds=0.6
            )
            await stack.enter_async_context(consumer)
            beats = consumer._relay._context

            async def has_beaten(relay=beats, since=beats.beat_at):
                return relay.beat_at > since

            await until(has_beaten)
        if expected:
            await until(lambda: first.alarms and second.alarms)
    assert (len(first.alarms), len(second.alarms)) == (expected, expected)
    if expected:
        [alarm] = second.alarms
        assert alarm.about == "the consumer name 'payments' is used twice"
        assert "this consumer reads 'mails'" in alarm.error
        assert "reads 'charges' with other handlers" in alarm.error


class ByHand:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


def sets(told, clock, functions, source="", stream="main"):
    consumer = "payments" if source else None
    return HandlerSets(stream, functions, told.append, clock, consumer=consumer, source=source)


def member(of, name=""):
    return Member(of.owner, True, name)


def test_ids_of_others_and_long_names_are_harmless():
    told, clock = [], ByHand()
    one = sets(told, clock, ["a"], "\ud800/" + "é\n" * 300)
    assert len(one.owner.encode()) <= 255
    assert one.owner.isprintable()
    two = sets(told, clock, ["b"], "q")
    two.compare([Member("", True), Member("x", True), member(two)])
    assert told == []
    two.compare([member(one)] * 2)
    assert [type(fact) for fact in told] == [Alarm]
    assert handlers_of(Member("x/y/z", True)) == ("y", "z", "")


@pytest.mark.promise("G6")
def test_relays_with_other_handlers_are_a_warning_and_then_an_alarm():  # U15
    told, clock = [], ByHand()
    old, new = sets(told, clock, ["a", "b"]), sets(told, clock, ["a", "b", "c"])
    new.compare([member(old, "old"), member(new)])
    assert told == [OtherHandlers("main", "old")]
    clock.now = DEPLOYMENT_SECONDS - 1
    new.compare([member(old, "old")])
    assert len(told) == 1
    new.compare([])  # the deployment is over; the next one begins anew
    clock.now += 2
    new.compare([member(old, "old")])
    assert [type(fact) for fact in told] == [OtherHandlers, OtherHandlers]
    clock.now += DEPLOYMENT_SECONDS
    for _ in range(3):
        new.compare([member(old, "old")])
    *_, alarm = told
    assert len(told) == 3
    assert alarm.about == "two sets of handlers serve the stream 'main'"
    assert alarm.error.startswith("the relay old serves this stream with other handlers")


def test_two_versions_of_a_consumer_that_stay_are_an_alarm():  # U15
    told, clock = [], ByHand()
    old, new = sets(told, clock, ["a"], "q"), sets(told, clock, ["b"], "q")
    new.compare([member(old)])
    clock.now = DEPLOYMENT_SECONDS
    new.compare([member(old)])
    assert [type(fact) for fact in told] == [OtherHandlers, Alarm]
    assert told[1].about == "the consumer name 'payments' is used twice"


@pytest.mark.promise("G6")
async def test_two_services_with_unnamed_handlers_in_one_stream(caplog):  # U15
    store = MemoryStore()
    plain = {"lease_seconds": 0.6, "poll_seconds": 0.05}
    one, two = Handlers(), Handlers()
    one.on("order.created", name="handle")(next(iter(charge()._by_type["order.created"])).call)
    two.on("order.created", name="handle")(next(iter(mail()._by_type["order.created"])).call)
    async with (
        Relay(store, one, name="charges", **plain) as first,
        Relay(store, one, name="same", **plain),
        Relay(store, two, name="mails", **plain),
    ):
        await until(lambda: "relay=mails" in caplog.text)
        assert len(first.owner) == 36 + 1 + 12
    lines = [record.getMessage() for record in caplog.records if "other-" in record.getMessage()]
    assert lines.count("other-handlers stream=main relay=mails") == 2
    assert len(lines) == 3  # each of the three relays has one line: the two sets are told, not all
