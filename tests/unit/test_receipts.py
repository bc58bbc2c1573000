"""Receipts: where a destination put an event, from its report to the settlement."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Message as Delivered

from postroom.broker import CONFIRMED, Outcome, Verdict
from postroom.brokers.kafka.receipts import receipt_of
from postroom.brokers.memory import MemoryBroker
from postroom.brokers.rabbitmq.message import Message
from postroom.brokers.rabbitmq.publish_call import receipt_of as rabbit_receipt
from postroom.model import receipts
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.unit.tower import FAILED, UNKNOWN, Tower, keyed

ONE, TWO = '{"to":"kafka","topic":"t","offset":1}', '{"to":"kafka","topic":"t","offset":2}'


def confirmed(receipt):
    return CONFIRMED._replace(receipt=receipt)


# -- the text -----------------------------------------------------------------------------------
def test_a_receipt_is_bounded_ascii():
    text = receipts.make("rabbitmq", exchange="é" * 255, routing_key="漢" * 85, n=7)
    assert len(text) <= receipts.MAX_PLACE_BYTES
    assert text.isascii()
    found = json.loads(text)
    assert found["n"] == 7
    assert found["exchange"].startswith("éé")
    assert found["exchange"].endswith("…")
    topic = "t" * 249
    text = receipts.make("kafka", topic=topic, partition=2**31, offset=2**63)
    assert json.loads(text) == {
        "to": "kafka", "topic": topic, "partition": 2**31, "offset": 2**63,
    }  # fmt: skip
    names = [f"payments/handler-{n:03}" for n in range(100)]
    found = json.loads(receipts.make("handlers", handlers=names))
    assert found["handlers"][:2] == names[:2]
    assert found["handlers"][-1] == "…"
    assert 10 < len(found["handlers"]) < 20
    assert json.loads(receipts.make("x", one=["y" * 1_000]))["to"] == "x"


def test_the_relay_adds_its_name_to_each():
    found = receipts.stamp('box "1"', {"a": ONE, "b": TWO}, ["b", "a", "c"])
    assert {name: json.loads(text) for name, text in found.items()} == {
        "a": {"by": 'box "1"', "to": "kafka", "topic": "t", "offset": 1},
        "b": {"by": 'box "1"', "to": "kafka", "topic": "t", "offset": 2},
        "c": {"by": 'box "1"'},
    }
    longest = receipts.make("rabbitmq", exchange="é" * 255, routing_key="漢" * 85)
    found = receipts.stamp("漢" * 300, {"a": longest}, ["a"])
    assert len(found["a"]) <= receipts.MAX_BYTES
    assert json.loads(found["a"])["by"].endswith("…")
    assert receipts.stamp("box", {}, ["a"]) == {"a": '{"by":"box"}'}


@pytest.mark.parametrize(
    "bad",
    ["", "x", "{}", '{"a":"\x00"}', '{"a":"é"}', '{"a":"\ud800"}', '{"a":"' + "x" * 500 + '"}',
     '{"a"', 7, None, {"to": "x"}, b'{"a":1}'],
    ids=repr,
)  # fmt: skip
def test_one_that_cannot_be_stored_costs_no_other(bad):
    found = receipts.stamp("box", {"a": ONE, "bad": bad, "c": TWO}, ["a", "bad", "c"])
    assert found == {
        "a": '{"by":"box",' + ONE[1:], "bad": '{"by":"box"}', "c": '{"by":"box",' + TWO[1:],
    }  # fmt: skip


@pytest.mark.parametrize(
    "stored", [None, "", "{", "[]", "7", b"{}", 7, "[" * 100_000, '{"a":{"b":1},"c":[1],"d":null}']
)
def test_a_stored_one_that_cannot_be_read_is_empty(stored):
    assert receipts.read(stored) == {}


# -- from the destination -----------------------------------------------------------------------
class Report:
    """A delivery report of Kafka."""

    def __init__(self, topic, partition, offset):
        self.topic, self.partition, self.offset = (
            lambda: topic, lambda: partition, lambda: offset,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("offset", "told"),
    [(0, {"offset": 0}), (17, {"offset": 17}), (-1001, {}), (-1, {}), (None, {})],
)
def test_kafka_names_the_offset_only_if_it_is_known(offset, told):
    assert hasattr(Delivered, "offset")
    text = receipt_of(Report("orders", 3, offset))
    assert json.loads(text) == {"to": "kafka", "topic": "orders", "partition": 3, **told}


def test_rabbitmq_names_exchange_and_routing_key():
    message = Message(make_record(1), 'an "exchange"', "the.key", {}, "", None, None, "")
    assert json.loads(rabbit_receipt(message)) == {
        "to": "rabbitmq", "exchange": 'an "exchange"', "routing_key": "the.key",
    }  # fmt: skip
    long = rabbit_receipt(message._replace(routing_key="\x01" * 255))
    assert len(long) <= receipts.MAX_PLACE_BYTES
    assert json.loads(long)["exchange"] == 'an "exchange"'


async def test_nothing_is_made_that_nobody_keeps():
    reporter, record = RecordingReporter(), make_record(1)
    assert not reporter.keeps_receipts
    broker = MemoryBroker()
    await broker.publish([record], reporter)
    assert reporter.outcome(record) == CONFIRMED


# -- to the settlement --------------------------------------------------------------------------
def settled(tower):
    settlement, _ = tower.settle()
    found = {name: receipts.read(text) for name, text in settlement.receipts.items()}
    return {name: one.get("offset") for name, one in found.items()}


def test_each_done_event_has_its_own_whatever_the_order_of_reports():
    tower = Tower()
    one, two, three = keyed(1, 2, 3)
    other = make_record(4, key="other")
    tower.admit(one, two, three, other)
    tower.flight.confirm([two], [TWO])  # before its turn
    tower.flight.confirm([other, one], ['{"to":"kafka","offset":4}', ONE])
    tower.flight.report(three, confirmed('{"to":"kafka","offset":3}'))
    assert settled(tower) == {"event-4": 4, "event-1": 1, "event-2": 2, "event-3": 3}


def test_an_event_whose_outcome_was_unknown_has_that_of_the_confirmed_attempt():
    tower = Tower()
    one, two = keyed(1, 2)
    tower.admit(one, two)
    tower.flight.report(one, UNKNOWN)
    tower.flight.confirm([two], [TWO])  # behind it: sent again
    assert settled(tower) == {}
    (suspect,) = tower.suspects
    tower.flight.send_alone(suspect, 1.0)
    tower.flight.report(suspect, confirmed('{"to":"kafka","offset":11}'))
    assert settled(tower) == {"event-1": 11}
    tower.admit(two)
    tower.flight.confirm([two], ['{"to":"kafka","offset":12}'])
    assert settled(tower) == {"event-2": 12}


def test_that_of_a_lost_lane_is_forgotten():
    tower = Tower()
    one = make_record(1, key="a")
    tower.admit(one)
    tower.flight.confirm([one], [ONE])
    tower.flight.forget({one.lane})
    tower.admit(one)
    tower.flight.confirm([one])  # by a destination that does not say where
    assert settled(tower) == {"event-1": None}


def test_a_failed_event_has_none():
    tower = Tower()
    one = make_record(1)
    tower.admit(one)
    tower.flight.report(one, Outcome(Verdict.FAILED, "boom", receipt=ONE))
    assert settled(tower) == {}
    assert FAILED.receipt == ""


@pytest.mark.parametrize("given", [[ONE], [ONE, TWO, ONE], (), [7, TWO], ["", TWO], [None, None]])
def test_a_broker_that_miscounts_or_gives_nonsense_stops_nothing(given):
    tower = Tower()
    one, two = make_record(1), make_record(2)
    tower.admit(one, two)
    tower.flight.confirm([one, two], given)
    assert settled(tower) == {
        "event-1": None,
        "event-2": 2 if len(given) == 2 and given[1] else None,
    }


def test_none_is_made_where_done_rows_are_deleted():
    tower = Tower()
    one = make_record(1)
    tower.admit(one)
    tower.flight.confirm([one], [ONE])
    pending = tower.flight.collect("main", "anna", 15.0, lambda _: {}, keep_done=False)
    assert pending.settlement.receipts == {}
    assert pending.settlement.done == [one]


@pytest.mark.parametrize(
    ("texts", "beginning", "rests"),
    [
        ([], "", []),
        ([None, None], "", [None, None]),
        (["abc"], "abc", [""]),
        (["abc", None, "abc"], "abc", ["", None, ""]),
        (["ab2", "ab1", None, "ab"], "ab", ["2", "1", None, ""]),
        (["x", "y"], "", ["x", "y"]),
    ],
)
def test_what_a_batch_has_in_common_is_told_once(texts, beginning, rests):
    assert receipts.common(texts) == (beginning, rests)
