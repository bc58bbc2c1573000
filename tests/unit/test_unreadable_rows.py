"""Rows that cannot become a record: what is said of them, and what the relay does."""

from __future__ import annotations

import pytest

from postroom.model.unreadable_rows import FlawedRecord, decode, to_record
from postroom.testing.broker_tools import make_record
from tests.unit.tower import Tower


def row(seq=1, **given):
    facts = make_record(seq, key="k")._asdict()
    return tuple((facts | given).values())


def flawed(seq, **given):
    return to_record(row(seq, **(given or {"headers_json": "[]"})))


def test_a_sound_row_becomes_a_plain_record():
    given = row(headers_json='{"a":"b"}', causation_json='[["m","t"]]', next_attempt_us=5)
    record = to_record(given)
    assert record == given
    assert type(record) is not FlawedRecord
    assert record.flaw is None
    assert record.headers == {"a": "b"}


@pytest.mark.parametrize(
    ("given", "words", "left"),
    [
        ({"id": decode(b"a\xff")}, r"id is not UTF-8 text: a\xff", {"id": r"a\xff"}),
        ({"id": b"a\xff"}, r"id is bytes, not str: b'a\xff'", {"id": r"a\xff"}),
        ({"type": None}, "type is NULL", {"type": ""}),
        ({"attempts": 2**31 - 1}, "attempts is 2147483647", {"attempts": 0}),
        ({"attempts": -1}, "attempts is -1", {"attempts": 0}),
        ({"state": "lost"}, "state is 'lost'", {"state": "pending"}),
        ({"occurred_us": 2**63 - 1}, "occurred_at is after the year 9999", {"occurred_us": 0}),
        ({"next_attempt_us": -(2**63)}, "next_attempt_at is before", {"next_attempt_us": None}),
        ({"headers_json": "[" * 9_000}, "headers are not a JSON object", {"headers_json": None}),
        ({"headers_json": '{"n":1}'}, "headers are not a JSON object", {"headers_json": None}),
        ({"causation_json": "[[1,2]]"}, "causation_path is not a JSON", {"causation_json": None}),
        ({"payload": "text"}, "payload is str, not bytes: 'text'", {"payload": b"text"}),
        ({"key_hash": "0123456789abcdef"}, "key_hash is str", {"key_hash": b"0123456789abcdef"}),
    ],
)
def test_what_is_wrong_is_said_and_the_rest_can_be_handled(given, words, left):
    record = to_record(row(**given))
    assert record.flaw.startswith(f"the stored row is not an event: {words}")
    assert {name: getattr(record, name) for name in left} == left
    assert record.seq == 1


def test_a_flawed_row_is_buried_at_its_turn_and_its_key_goes_on():
    tower = Tower()
    one, four = make_record(1, key="k"), make_record(4, key="k")
    other, bad = make_record(2, key="o"), flawed(3)
    assert tower.admit(one, other, bad, four) == [one, other]
    tower.flight.confirm([one, other])
    tower.settle()
    assert tower.admit(bad, four) == []
    settlement, _ = tower.settle()
    assert [buried[:3] for buried in settlement.dead] == [(bad, 1, bad.flaw)]
    assert tower.admit(four) == [four]


def test_a_flawed_row_blocks_its_key_where_nothing_may_be_buried():
    tower = Tower(on_exhausted="block")
    bad, behind, other = flawed(1), make_record(2, key="k"), make_record(3, key="o")
    assert tower.admit(bad, behind, other) == [other]
    settlement, _ = tower.settle()
    assert [failure[:4] for failure in settlement.failed] == [(bad, 1, 7, bad.flaw)]
    assert settlement.dead == []


def test_a_flawed_row_behind_the_barrier_of_its_key_is_parked_like_any_other():
    tower = Tower()
    assert tower.admit(flawed(6, headers_json="no", barrier=5)) == []
    settlement, _ = tower.settle()
    assert [record.seq for record in settlement.parked] == [6]


def test_a_flawed_row_that_a_relay_had_begun_is_not_tried_again():
    tower = Tower()
    bad = flawed(1, state="processing", headers_json="no")
    assert tower.admit(bad) == []
    settlement, _ = tower.settle()
    assert [buried[:3] for buried in settlement.dead] == [(bad, 1, bad.flaw)]
    assert tower.suspects == []
    assert tower.attempts == [(1, 1)]
