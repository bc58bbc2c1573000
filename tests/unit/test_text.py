"""A refused name is an error of whoever asked for it, and names that subject only."""

from __future__ import annotations

import pytest

from postroom import ConfigError, Consumer, Event, Handlers, Inbox, MemoryStore, RelaySettings
from postroom.brokers.kafka import KafkaBroker
from postroom.bus import Bus
from postroom.errors import EventError
from postroom.event import check_field
from postroom.model.text import TextError, check_text
from postroom.routes import Routes
from postroom.sources.memory import MemorySource

REFUSED = [
    (lambda: Inbox(""), "an inbox's consumer is empty; give it a value"),
    (lambda: Inbox("a\nb"), r"an inbox's consumer contains the control character '\n' at"),
    (lambda: Handlers(name=""), "the name of handlers is empty; give it a value"),
    (lambda: RelaySettings(stream=""), "stream is empty; give it a value"),
    (lambda: RelaySettings(name="x" * 256), "name has 256 bytes in UTF-8; the limit is 255"),
    (lambda: Routes({"a": ""}), "route: topic is empty; give it a value"),
    (lambda: Bus().module(""), "module is empty; give it a value"),
    (lambda: KafkaBroker("kafka://k:9092", topic=""), "Kafka: topic is empty; give it a value"),
    (
        lambda: Consumer(MemorySource(), MemoryStore(), Handlers(), name="a\ud800"),
        "consumer: name contains a lone surrogate at position 1 and is not valid Unicode",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_a_setting_is_refused_by_its_own_name(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(message)
    assert "event" not in str(caught.value)


def test_an_event_is_refused_by_its_field():
    for refuse in (lambda: Event("t", key=""), lambda: check_field("key", "", 10)):
        with pytest.raises(EventError) as caught:
            refuse()
        assert str(caught.value) == "event.key is empty; omit it or set a value"
        assert caught.value.field == "key"
    with pytest.raises(EventError) as caught:
        Event("t", key="k" * 256)
    assert (caught.value.field, caught.value.limit) == ("key", 255)


def test_a_check_belongs_to_nobody():
    with pytest.raises(TextError) as caught:
        check_text("a cat's name", "x" * 5, 4)
    assert not isinstance(caught.value, EventError)
    assert (caught.value.what, caught.value.limit) == ("a cat's name", 4)
    assert str(caught.value) == "a cat's name has 5 bytes in UTF-8; the limit is 4"
