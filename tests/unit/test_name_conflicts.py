"""Two services that use one consumer name in one database are noticed."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from postroom.engine.consumer.consumer import Consumer
from postroom.engine.consumer.name_conflicts import NameConflicts
from postroom.engine.handlers.handlers import Handlers
from postroom.observer import Alarm
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


def test_ids_of_others_and_long_names_are_harmless():
    told = []
    one = NameConflicts("payments", "\ud800/" + "é\n" * 300, ["a"], told.append, "inbox.payments")
    assert len(one.owner.encode()) <= 255
    assert one.owner.isprintable()
    two = NameConflicts("payments", "q", ["b"], told.append, "inbox.payments")
    two.compare([Member("", True), Member("x", True), Member("a/b", True), Member(two.owner, True)])
    assert told == []
    two.compare([Member(one.owner, True)] * 2)
    assert [type(fact) for fact in told] == [Alarm]
