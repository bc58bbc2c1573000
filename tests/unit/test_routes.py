"""Routes from event types to topics."""

from __future__ import annotations

import pytest

from postroom.errors import ConfigError
from postroom.event import Event
from postroom.routes import Routes


def topic(routes, type_, **given):
    return routes.topic_of(Event(type_, **given))


@pytest.mark.req("S1.2")
def test_without_a_route_it_is_outbox_events():
    assert topic(Routes(), "order.created") == "outbox_events"
    assert topic(Routes(default="events"), "order.created") == "events"


def test_its_own_topic_wins_then_the_exact_type_then_the_longest_pattern():
    routes = Routes(
        {"*": "all", "order.*": "orders", "order.item.*": "items", "order.created": "new-orders"}
    )
    assert topic(routes, "order.created", topic="mine") == "mine"
    assert topic(routes, "order.created") == "new-orders"
    assert topic(routes, "order.item.added") == "items"
    assert topic(routes, "order.paid") == "orders"
    assert topic(routes, "order.") == "orders"
    assert topic(routes, "order") == "all"
    assert topic(routes, "user.created") == "all"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a*b": "t"}, "'a\\*b': \\* is only supported at the end"),
        ({"*a": "t"}, "is only supported at the end"),
        ({"a**": "t"}, "is only supported at the end"),
        ({"a": ""}, "topic is empty"),
        ({"a": "t\x00"}, "control character"),
        ({"a": "t" * 250}, "the limit is 249"),
        ({"a*": 5}, "must be text, not int"),
    ],
)
def test_routes_that_make_no_sense(table, message):
    with pytest.raises(ConfigError, match=message):
        Routes(table)


def test_a_default_that_makes_no_sense():
    with pytest.raises(ConfigError, match="topic is empty"):
        Routes(default="")
