"""From a record to a message: where it goes, and what it says of itself."""

from __future__ import annotations

import json

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.rabbitmq.message import Writer
from postroom.brokers.rabbitmq.settings import RabbitSettings
from postroom.testing.broker_tools import make_record


def write(options, **facts):
    return Writer(RabbitSettings(**options)).write(make_record(**facts), "the-outbox")


@pytest.mark.req("S5.2")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("", "a.topic")),
        ({"exchange": "orders"}, ("orders", "a.topic")),
        ({"exchange": "orders", "routing_key": "type"}, ("orders", "order.paid")),
        ({"exchange": "orders", "routing_key": "key"}, ("orders", "order-1")),
        ({"exchange": "orders", "routing_key": "header:region"}, ("orders", "eu")),
        ({"exchange_from": "topic"}, ("a.topic", "order.paid")),
        ({"exchange_from": "topic", "routing_key": "topic"}, ("a.topic", "a.topic")),
    ],
)
def test_the_address(options, expected):
    made = write(
        options, type="order.paid", topic="a.topic", key="order-1", headers_json='{"region": "eu"}'
    )
    assert (made.exchange, made.routing_key) == expected
    record = make_record(topic="a.topic")
    assert Writer(RabbitSettings(**options)).exchange_of(record) == expected[0]


@pytest.mark.parametrize(
    ("options", "facts", "error"),
    [
        ({"routing_key": "key"}, {}, "the event's key, which is missing"),
        ({"routing_key": "header:region"}, {}, "the event's header:region, which is missing"),
        (
            {"routing_key": "header:region"},
            {"headers_json": json.dumps({"region": "é" * 128})},
            "header:region cannot be a routing key: it is longer than 255 bytes",
        ),
    ],
)
def test_an_event_that_has_no_routing_key_waits(options, facts, error):
    made = write(options, **facts)
    assert isinstance(made, Outcome)
    assert made.verdict is Verdict.MISCONFIGURED
    assert error in made.error


def test_properties_and_headers():
    made = write(
        {"app_id": "shop"}, id="e1", type="order.paid", key="order-1", aggregate_type="order",
        correlation_id="c1", content_type="text/plain", occurred_us=1_700_000_000_999_999,
        kseq=7, headers_json='{"traceparent": "00-abc"}', schema_version=3,
    )  # fmt: skip
    assert (made.content_type, made.correlation_id) == ("text/plain", "c1")
    assert (made.timestamp, made.app_id) == (1_700_000_000, "shop")
    assert made.headers == {
        "postroom-id": "e1",
        "postroom-type": "order.paid",
        "content-type": "text/plain",
        "postroom-schema-version": "3",
        "postroom-occurred-at": "2023-11-14T22:13:20.999999+00:00",
        "postroom-key": "order-1",
        "postroom-aggregate-type": "order",
        "postroom-correlation-id": "c1",
        "postroom-kseq": "7",
        "postroom-outbox": "the-outbox",
        "traceparent": "00-abc",
    }


def test_a_header_of_the_users_does_not_take_the_place_of_ours():
    made = write({}, content_type="text/plain", headers_json='{"content-type": "x/y", "a": "b"}')
    assert (made.headers["content-type"], made.headers["a"]) == ("text/plain", "b")


def test_a_time_before_1970_has_no_place_in_a_property():
    made = write({}, occurred_us=-1)
    assert made.timestamp is None
    assert made.headers["postroom-occurred-at"] == "1969-12-31T23:59:59.999999+00:00"
