"""Records: the unit of order, lanes, and what they show to handlers."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from hashlib import md5

import pytest

from postroom.record import LANES, key_hash, lane_of, short_error
from postroom.testing.broker_tools import make_record


# -- keys and lanes (W10) ---------------------------------------------------------------------
@pytest.mark.promise("W10")
def test_the_unit_of_order_is_the_pair_of_aggregate_type_and_key():
    assert key_hash("order", "1", "x") == md5(b"order\x001").digest()
    assert key_hash(None, "1", "x") == md5(b"\x001").digest()
    assert key_hash("order", "ž", "x") == md5("order\0ž".encode()).digest()
    hashes = {
        key_hash("order", "1", "x"),
        key_hash("user", "1", "x"),
        key_hash(None, "1", "x"),
        key_hash("order", "1 ", "x"),
        key_hash("Order", "1", "x"),
        key_hash(None, "order1", "x"),
    }
    assert len(hashes) == 6
    assert key_hash("order", "1", "x") == key_hash("order", "1", "y")


@pytest.mark.promise("W10")
def test_a_keyless_event_is_a_unit_of_its_own():
    assert key_hash(None, None, "a") != key_hash(None, None, "b")
    assert key_hash("order", None, "a") == key_hash(None, None, "a")
    assert key_hash(None, None, "a") not in {key_hash(None, "a", "a"), key_hash("a", "a", "a")}


@pytest.mark.promise("W10")
def test_a_lane_is_the_first_byte_of_the_hash_modulo_sixty_four():
    assert LANES == 64
    assert [lane_of(bytes([n]) + b"x" * 15) for n in (0, 1, 63, 64, 255)] == [0, 1, 63, 0, 63]
    assert lane_of(bytes.fromhex("de944db85b190d4b4b22e759e2352c9a")) == 0xDE % 64 == 30


def test_keys_spread_evenly_over_the_lanes():
    counts = Counter(lane_of(key_hash("order", f"order-{n}", "")) for n in range(64_000))
    assert set(counts) == set(range(64))
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1150


# -- what a handler sees ----------------------------------------------------------------------
def test_properties():
    record = make_record(
        headers_json='{"a":"ž"}',
        causation_json='[["m","t"],["n","u"]]',
        occurred_us=1_700_000_000_000_001,
        created_us=-1,
        next_attempt_us=0,
    )
    assert record.headers == {"a": "ž"}
    assert record.causation_path == (("m", "t"), ("n", "u"))
    assert record.occurred_at == datetime(2023, 11, 14, 22, 13, 20, 1, UTC)
    assert record.created_at == datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
    assert record.next_attempt_at == datetime(1970, 1, 1, tzinfo=UTC)
    plain = make_record()
    assert (plain.headers, plain.causation_path, plain.next_attempt_at) == ({}, (), None)


def test_data_is_decoded_where_it_is_json():
    assert make_record(payload=b'{"a":[1]}').data == {"a": [1]}
    assert make_record(payload=b"\x00\xff", content_type="image/png").data == b"\x00\xff"


def test_size_counts_payload_and_headers():
    assert make_record(payload=b"12345").size == 5
    assert make_record(payload=b"12345", headers_json="{}").size == 7


# -- errors as text (S2.1) --------------------------------------------------------------------
class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.req("S2.1")
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (ValueError(), "ValueError"),
        (KeyError("x"), "KeyError: 'x'"),
        ("plain", "plain"),
        ("nul\x00 and \ud800", "nul\\0 and ?"),
        (Unprintable(), "Unprintable: (its message cannot be printed)"),
        ("x" * 2000, "x" * 2000),
        ("x" * 2001, "x" * 1999 + "…"),
    ],
)
def test_an_error_becomes_short_text(error, text):
    assert short_error(error) == text
    short_error(error).encode()
