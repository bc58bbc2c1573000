"""Conditions on payloads and headers, as operators write them."""

from __future__ import annotations

import json

import pytest

from postroom.model.conditions import (
    MISSING,
    Header,
    payload_of,
    read_condition,
    read_header,
    value_at,
)
from postroom.record import Record

ORDER = {
    "order": {"total": 120.5, "paid": True, "id": "42", "number": 42, "note": None, "on": "2026-05-01"},
    "items": [{"sku": "A-1"}, {"sku": "B-2"}],
    "tags": ["new", 7],
    "a.b": 1,
}  # fmt: skip


def record(payload=b"{}", content_type="application/json", headers=None):
    return Record(
        1, "e", "main", 0, b"", "t", "t", None, None, None, payload, content_type, headers,
        None, None, 1, None, None, None, None, 0, 0, "done", 0,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "order.total>100", "order.total > 100", "order.total>=120.5", "order.total<=120.5",
        "order.total<121", "order.total!=100", "order.paid=true", "order.paid!=1",
        "order.id=42", 'order.id="42"', "order.number=42", "order.number=42.0", "order.note=null",
        "order.on>=2026-05-01", "order.on<2026-05-02", "items[0].sku=A-1", "items[-1].sku=B-2",
        "$.items[1].sku~B", "tags~new", "tags~7", "order.id~4", "tags[1]=7", "order.id>4",
    ],
)  # fmt: skip
def test_a_payload_that_matches(text):
    assert read_condition(text).matches(ORDER)


@pytest.mark.parametrize(
    "text",
    [
        "order.total>120.5", "order.total=120", "order.paid=1", 'order.number="42"',
        "order.note=", "order.note>1", "order.missing=1", "order.missing!=1", "items.sku=A-1",
        "items[2].sku=A-1", "items[9].sku!=A-1", "order[0]=1", "order>1", "items>1",
        "order.paid>0", "order.total~1", "tags~n", "order.total>abc", "order.total.x=1",
    ],
)  # fmt: skip
def test_a_payload_that_does_not_match(text):
    assert not read_condition(text).matches(ORDER)


@pytest.mark.parametrize(
    "text", ["", "order", "=1", ">1", "order..total=1", "[x]=1", "a[1=2", "order.=1", "!=3"]
)
def test_a_condition_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=r"a condition such as order.total>100"):
        read_condition(text)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"{", b"9" * 5_000, b"[" * 100_000, b'{"a":' * 5_000],
    ids=["empty", "not text", "cut", "digits", "deep list", "deep object"],
)
def test_what_is_not_json_is_missing(body):
    assert payload_of(record(body)) is MISSING


def test_json_is_known_by_its_content_type():
    assert payload_of(record(b"[1]", "application/json; charset=utf-8")) == [1]
    assert payload_of(record(b"[1]", "application/vnd.order+json")) == [1]
    assert payload_of(record(b"[1]", "application/octet-stream")) is MISSING


@pytest.mark.parametrize("body", ["[NaN]", "[Infinity]", "[1e999]", f"[{'9' * 4_000}]", "[{}]"])
def test_odd_values_are_compared_without_an_error(body):
    payload = json.loads(body)
    assert value_at(payload, (0,)) is not MISSING
    for text in ("[0]=1", "[0]!=1", "[0]>1.5", "[0]<1.5", "[0]~x", "[0]=[]", '[0]="x"'):
        assert read_condition(text).matches(payload) in (True, False)


def test_headers():
    assert read_header("tenant=acme=1") == Header("tenant", "acme=1")
    assert Header("tenant", "acme").matches(record(headers='{"tenant":"acme"}'))
    assert not Header("tenant", "acme").matches(record(headers='{"tenant":"other"}'))
    for odd in (None, "{", "[1]", '"x"', "[" * 100_000):  # edited by hand
        assert not Header("tenant", "acme").matches(record(headers=odd))
    with pytest.raises(ValueError, match="a header such as tenant=acme"):
        read_header("tenant")
