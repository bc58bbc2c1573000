"""Events: defaults, and every input that is refused the moment the event is made."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from uuid import UUID

import pytest

from postroom.errors import CausationError, EventError
from postroom.event import Event, new_id


# -- what is given and what is filled in ------------------------------------------------------
@pytest.mark.req("S3.1", "S4.6")
def test_defaults():
    before = datetime.now(UTC)
    event = Event("order.created", {"total": 1})
    assert UUID(event.id).version == 7
    assert (event.stream, event.topic, event.key) == ("main", None, None)
    assert (event.headers, event.causation_path, event.schema_version) == ({}, (), 1)
    assert event.available_at is None
    assert before <= event.occurred_at <= datetime.now(UTC)


def test_ids_of_one_host_are_distinct_and_sort_by_time():
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert ids == sorted(ids)


@pytest.mark.req("S4.6")
def test_the_key_is_the_aggregate_id_unless_given():
    assert Event("t", aggregate_type="order", aggregate_id="42").key == "42"
    assert Event("t", aggregate_id="42", key="other").key == "other"


@pytest.mark.req("S3.1")
def test_a_causation_path_is_kept_as_pairs():
    event = Event("t", causation_path=[["orders", "order.created"], ("billing", "paid")])
    assert event.causation_path == (("orders", "order.created"), ("billing", "paid"))


def test_what_was_checked_cannot_be_changed_afterwards():
    headers, path = {"a": "1"}, [["m", "t"]]
    event = Event("t", headers=headers, causation_path=path)
    headers["a"] = 5
    headers["b\x00"] = "x"
    path.append("nonsense")
    assert event.headers == {"a": "1"}
    assert event.causation_path == (("m", "t"),)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.type = "other"


@pytest.mark.parametrize(
    "text",
    [
        "'; DROP TABLE x; --",
        'q"',
        "\\",
        "%s",
        "$1",
        "🦊",
        "ž",
        "e\u0301",
        "trailing ",
        " leading",
        "CASE",
        "\u2028",
        "\u200b",
    ],
)
def test_hostile_text_is_fine_as_it_is(text):
    event = Event(
        text,
        id=text,
        key=text,
        topic=text,
        stream=text,
        aggregate_type=text,
        correlation_id=text,
        headers={text: text},
    )
    assert (event.type, event.id, event.key, event.headers) == (text, text, text, {text: text})


# -- text fields ------------------------------------------------------------------------------
LIMITS = {
    "type": 255,
    "id": 100,
    "key": 255,
    "aggregate_type": 255,
    "aggregate_id": 255,
    "stream": 64,
    "topic": 249,
    "correlation_id": 255,
    "content_type": 255,
    "partition_key": 255,
}


def make(**given):
    return Event(**({"type": "t"} | given))


def refused(**given):
    with pytest.raises(EventError) as caught:
        make(**given)
    return caught.value


@pytest.mark.parametrize(("field", "limit"), LIMITS.items())
def test_text_has_a_limit_in_bytes(field, limit):
    make(**{field: "x" * limit})
    error = refused(**{field: "x" * (limit + 1)})
    assert str(error) == f"event.{field} has {limit + 1} bytes in UTF-8; the limit is {limit}"
    assert (error.field, error.limit) == (field, limit)
    make(**{field: "ž" * (limit // 2)})
    assert refused(**{field: "ž" * (limit // 2 + 1)}).limit == limit


@pytest.mark.parametrize("field", LIMITS)
@pytest.mark.parametrize("character", ["\x00", "\x01", "\n", "\t", "\x1f", "\x7f", "\x80", "\x9f"])
def test_nul_and_control_characters_are_refused(field, character):
    error = refused(**{field: f"ab{character}c"})
    assert str(error) == (
        f"event.{field} contains the control character {character!r} at position 2; remove it"
    )
    assert error.field == field


@pytest.mark.parametrize("field", LIMITS)
def test_empty_lone_surrogates_and_no_text_are_refused(field):
    assert str(refused(**{field: ""})) == f"event.{field} is empty; omit it or set a value"
    assert str(refused(**{field: "a\ud800"})) == (
        f"event.{field} contains a lone surrogate at position 1 and is not valid Unicode"
    )
    assert str(refused(**{field: 42})) == f"event.{field} must be text, not int; use str(...)"
    assert str(refused(**{field: b"x"})) == f"event.{field} must be text, not bytes; use str(...)"


@pytest.mark.parametrize("field", ["type", "id", "stream"])
def test_what_must_be_there_cannot_be_none(field):
    assert "must be text, not NoneType" in str(refused(**{field: None}))


# -- times ------------------------------------------------------------------------------------
class NoOffset(tzinfo):
    def utcoffset(self, when):
        return None


@pytest.mark.parametrize("field", ["occurred_at", "available_at"])
def test_times(field):
    for naive in (datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=NoOffset())):
        error = refused(**{field: naive})
        assert (
            str(error) == f"event.{field} has no time zone; use datetime.now(UTC) or .astimezone()"
        )
        assert error.field == field
    assert "must be a datetime, not str" in str(refused(**{field: "2024-01-01"}))
    assert "must be a datetime, not float" in str(refused(**{field: 1.5}))
    late = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))
    assert "within the years 1 to 9999" in str(refused(**{field: late}))
    make(**{field: datetime(1969, 1, 1, tzinfo=timezone(timedelta(hours=5)))})


def test_an_event_without_a_time_is_refused():
    assert "must be a datetime, not NoneType" in str(refused(occurred_at=None))


# -- headers ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({1: "x"}, "must be text, not int"),
        ({"a": 1}, "'a' is int, not text; use str(...)"),
        ({"a": b"x"}, "'a' is bytes, not text"),
        ({"a": None}, "'a' is NoneType, not text"),
        ({"": "x"}, "is empty"),
        ({"a\n": "x"}, "control character"),
        ({"a": "x\x00"}, "'a' contains a NUL character; remove it"),
        ({"a": "\ud800"}, "'a' contains a lone surrogate"),
        ({"\ud800": "x"}, "lone surrogate"),
        ({"Postroom-Id": "x"}, "names that begin with 'postroom-' are reserved"),
        ({"n" * 256: "x"}, "the limit is 255"),
        ([("a", "b")], "must be a mapping of text to text, not list"),
        ([], "must be a mapping of text to text, not list"),
        (None, "must be a mapping of text to text, not NoneType"),
        ("a", "must be a mapping"),
    ],
)
def test_headers_are_text_to_text(headers, problem):
    error = refused(headers=headers)
    assert error.field.startswith("headers")
    assert problem in str(error)


def test_headers_have_a_limit_together():
    make(headers={"a": "x" * 16_383})
    error = refused(headers={"a": "x" * 16_384})
    assert str(error) == (
        "event.headers have 16385 bytes; the limit is 16384. Move large values into the payload"
    )
    assert error.limit == 16_384
    make(headers={"a": "multi\nline ž", "b": ""})


# -- causation and version --------------------------------------------------------------------
@pytest.mark.req("S3.1")
@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ([("m", "t"), ("n", "t"), ("m", "t")], "contains a cycle: m:t caused itself"),
        (["mt"], "must contain [module, type] pairs, not 'mt'"),
        ([("m",)], "must contain [module, type] pairs"),
        ([("m", "t", "x")], "must contain [module, type] pairs"),
        ([5], "must contain [module, type] pairs, not 5"),
        (5, "must be a list of [module, type] pairs, not int"),
        ("mt", "must be a list of [module, type] pairs, not str"),
        (None, "must be a list of [module, type] pairs, not NoneType"),
    ],
)
def test_causation_paths_that_are_refused(path, problem):
    with pytest.raises(CausationError) as caught:
        make(causation_path=path)
    assert problem in str(caught.value)
    assert caught.value.field == "causation_path"


@pytest.mark.parametrize("step", [("m", ""), ("m\x00", "t"), ("m", 5)])
def test_steps_of_a_causation_path_are_names(step):
    assert refused(causation_path=[step]).field == "causation_path"


def test_a_causation_path_has_a_limit():
    make(causation_path=[("m", f"t{n}") for n in range(32)])
    with pytest.raises(CausationError, match="has 33 steps; the limit is 32") as caught:
        make(causation_path=[("m", f"t{n}") for n in range(33)])
    assert caught.value.limit == 32


@pytest.mark.parametrize("version", ["1", 1.0, True, None])
def test_a_schema_version_is_a_whole_number(version):
    assert "must be a whole number" in str(refused(schema_version=version))


@pytest.mark.parametrize("version", [-1, 2**31])
def test_a_schema_version_has_a_range(version):
    assert "from 0 to 2147483647" in str(refused(schema_version=version))
    make(schema_version=2**31 - 1)


# -- options for a destination ----------------------------------------------------------------
def test_a_tombstone_has_a_key_and_no_payload():
    assert make(tombstone=True, key="k").payload is None
    assert make(tombstone=True, aggregate_id="42").key == "42"
    assert str(refused(tombstone=True)) == (
        "event.tombstone needs a key: it deletes the key's earlier messages"
    )
    assert str(refused(tombstone=True, key="k", payload={})) == (
        "event.tombstone has no payload; omit the payload, or tombstone=True"
    )
    assert str(refused(tombstone=1, key="k")) == "event.tombstone must be True or False, not 1"


@pytest.mark.parametrize("number", [0, 2**31 - 1])
def test_a_partition(number):
    assert make(partition=number).partition == number


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (-1, "must be from 0 to 2147483647"),
        (2**31, "must be from 0 to 2147483647"),
        ("1", "must be a whole number, not '1'"),
        (True, "must be a whole number, not True"),
        (1.0, "must be a whole number, not 1.0"),
    ],
)
def test_a_wrong_partition_is_refused(number, said):
    assert str(refused(partition=number)) == f"event.partition {said}"


def test_a_partition_and_a_partition_key_exclude_each_other():
    assert refused(partition=1, partition_key="k").field == "partition_key"


def test_a_time_to_be_delivered_by():
    later = datetime(2199, 1, 1, tzinfo=UTC)
    assert make(deliver_by=later, available_at=later - timedelta(seconds=1)).deliver_by == later
    assert str(refused(deliver_by=later, available_at=later)) == (
        "event.deliver_by must be after available_at"
    )
    assert refused(deliver_by=later.replace(tzinfo=None)).field == "deliver_by"
    assert refused(deliver_by=60).field == "deliver_by"
