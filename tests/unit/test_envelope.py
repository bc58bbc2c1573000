"""The headers of a message: written, read back, and read from strangers."""

import json

import pytest

from postroom.model.envelope import read_headers, write_headers
from postroom.testing.broker_tools import make_record


@pytest.mark.req("S3.1")
def test_headers_say_everything_and_come_back():
    record = make_record(
        id="e1", type="order.paid", key="o1", aggregate_type="order", aggregate_id="o1",
        correlation_id="c1", causation_json='[["shop","order.placed"]]', schema_version=3, kseq=7,
        headers_json='{"traceparent":"00-ab-cd-01","x":"ü"}', occurred_us=1_700_000_000_123_456,
    )  # fmt: skip
    headers = dict(write_headers(record, "box"))
    assert headers == {
        "postroom-id": "e1",
        "postroom-type": "order.paid",
        "content-type": "application/json",
        "postroom-schema-version": "3",
        "postroom-occurred-at": "2023-11-14T22:13:20.123456+00:00",
        "postroom-key": "o1",
        "postroom-aggregate-type": "order",
        "postroom-aggregate-id": "o1",
        "postroom-correlation-id": "c1",
        "postroom-causation-path": '[["shop","order.placed"]]',
        "postroom-kseq": "7",
        "postroom-outbox": "box",
        "traceparent": "00-ab-cd-01",
        "x": "ü",
    }
    read = read_headers(headers)
    assert (read.id, read.type, read.key, read.kseq, read.outbox) == (
        "e1",
        "order.paid",
        "o1",
        7,
        "box",
    )
    assert read.causation_path == (("shop", "order.placed"),)
    assert read.schema_version == 3
    assert read.occurred_us == 1_700_000_000_123_456
    assert read.headers == {"traceparent": "00-ab-cd-01", "x": "ü"}


def test_what_an_event_does_not_have_is_left_out():
    headers = dict(write_headers(make_record(key=None), "box"))
    assert set(headers) == {
        "postroom-id", "postroom-type", "content-type", "postroom-schema-version",
        "postroom-occurred-at",
    }  # fmt: skip


@pytest.mark.parametrize(
    "nonsense", ["", "x", "-1", "²", "[1]", '[["a"]]', json.dumps({"a": 1}), "9" * 30]
)
def test_headers_of_strangers_never_raise(nonsense):
    names = (
        "postroom-kseq",
        "postroom-schema-version",
        "postroom-occurred-at",
        "postroom-causation-path",
    )
    read = read_headers(dict.fromkeys(names, nonsense))
    assert read.causation_path == ()
    assert read.occurred_us is None


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "1970-01-01T00:00:00+00:00"),
        (1, "1970-01-01T00:00:00.000001+00:00"),
        (-1, "1969-12-31T23:59:59.999999+00:00"),
        (1_700_000_000_000_000, "2023-11-14T22:13:20+00:00"),
        (1_700_000_000_120_000, "2023-11-14T22:13:20.120000+00:00"),
    ],
)
def test_an_instant_is_written_to_the_microsecond(microseconds, text):
    headers = dict(write_headers(make_record(occurred_us=microseconds), "box"))
    assert headers["postroom-occurred-at"] == text
    assert read_headers(headers).occurred_us == microseconds
