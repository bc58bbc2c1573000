"""Messages of foreign senders under our names: CloudEvents in both modes, headers by option."""

from __future__ import annotations

import json

import pytest

from postroom.engine.consumer.messages import read
from postroom.model.envelope import TOMBSTONE
from postroom.model.foreign_messages import Names, cloud_id, translate
from postroom.model.incoming import Incoming
from postroom.model.message_id import identify, record_hash

BINARY = {
    "ce_specversion": "1.0",
    "ce_id": "42",
    "ce_source": "/shop/a",
    "ce_type": "order.created",
    "ce_subject": "o-1",
    "ce_time": "2026-01-02T03:04:05Z",
    "ce_partitionkey": "k-1",
    "content-type": "application/json",
}
STRUCTURED = {"content-type": "application/cloudevents+json; charset=utf-8"}


def envelope(**changes):
    event = {
        "specversion": "1.0", "id": "42", "source": "/shop/a", "type": "order.created",
        "subject": "o-1", "time": "2026-01-02T03:04:05Z", "partitionkey": "k-1",
    }  # fmt: skip
    return {**event, **changes}


def structured(*, raw=None, **changes):
    body = json.dumps(envelope(**changes)).encode() if raw is None else raw
    return translate(Incoming("t", body, STRUCTURED))


def facts(message):
    record, hashed = read(message, "reject")
    return record.id, record.type, record.aggregate_id, record.key, record.occurred_us, hashed


def test_binary_and_structured_mode_say_the_same():  # R-A5
    expected = ("/shop/a 42", "order.created", "o-1", "k-1", 1_767_323_045_000_000, False)
    binary = translate(Incoming("t", b'{"n":1}', BINARY))
    other = structured(data={"n": 1})
    assert facts(binary) == facts(other) == expected
    assert other.body == b'{"n": 1}'
    assert read(other, "reject")[0].content_type == "application/json"
    assert read(other, "reject")[0].headers["ce_source"] == "/shop/a"


@pytest.mark.parametrize("prefix", ["ce_", "ce-", "cloudEvents:", "cloudEvents_"])
def test_each_way_to_spell_an_attribute(prefix):
    headers = {f"{prefix}{n}": v for n, v in (("id", "1"), ("source", "/s"), ("type", "t.y"))}
    record, _ = read(translate(Incoming("t", b"{}", headers)), "reject")
    assert (record.id, record.type) == ("/s 1", "t.y")


def test_the_same_id_of_two_sources_is_two_messages():  # R-A5
    two = [translate(Incoming("t", b"{}", {**BINARY, "ce_source": s})) for s in ("/a", "/b")]
    assert len({identify(m, "reject").text for m in two}) == 2
    assert cloud_id("/a b", "c") != cloud_id("/a", "b c")


def test_headers_of_ours_win():
    ours = {"postroom-id": "e-1", "postroom-type": "mine", **BINARY}
    record, _ = read(translate(Incoming("t", b"{}", ours)), "reject")
    assert (record.id, record.type) == ("e-1", "mine")


def test_a_key_of_the_broker_wins_over_that_of_the_event():
    record, _ = read(translate(Incoming("t", b"{}", BINARY, key="kafka")), "reject")
    assert record.key == "kafka"


@pytest.mark.parametrize(
    ("changes", "body", "content_type"),
    [
        ({"data": None}, b"null", "application/json"),
        ({}, b"", "application/json"),
        ({"data": "text"}, b'"text"', "application/json"),
        ({"data": "<a/>", "datacontenttype": "text/xml"}, b"<a/>", "text/xml"),
        ({"data_base64": "AAEC"}, b"\x00\x01\x02", "application/octet-stream"),
        ({"data_base64": "e30=", "datacontenttype": "application/json"}, b"{}", "application/json"),
    ],
)
def test_the_data_of_structured_mode(changes, body, content_type):
    message = structured(**changes)
    assert (message.problem, message.body) == ("", body)
    assert read(message, "reject")[0].content_type == content_type


def test_numbers_stay_as_their_sender_wrote_them():
    raw = json.dumps(envelope()).encode()[:-1] + b', "data" : {"price":1.10, "big":1e400} }'
    assert structured(raw=raw).body == b'{"price":1.10, "big":1e400}'


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"no JSON", b"[]", b'"text"', b"{", b'{"id"', b'{"id":}', b'{"id": "1" "a": 2}',
        b'{"id": "1"}', b"\xff", b"[" * 100_000, b'{"id":' + b"[" * 100_000, b"{1:2}",
        json.dumps(envelope(data_base64="***")).encode(), json.dumps(envelope(data_base64=1)).encode(),
    ],
)  # fmt: skip
def test_a_structured_event_that_is_none_is_told(raw):
    assert "not a valid CloudEvent" in structured(raw=raw).problem


@pytest.mark.parametrize(
    "kind", ["application/cloudevents-batch+json", "application/cloudevents+avro"]
)
def test_other_formats_are_told(kind):
    assert "are not supported" in translate(Incoming("t", b"{}", {"content-type": kind})).problem


def test_headers_that_an_option_names():  # R-A4: as Debezium's outbox router sends them
    names = Names("id", "eventType")
    headers = {"id": "d-1", "eventType": "order.created"}
    record, _ = read(translate(Incoming("t", b"{}", headers), names), "reject")
    assert (record.id, record.type) == ("d-1", "order.created")
    record, _ = read(translate(Incoming("t", b"{}", {**headers, **BINARY}), names), "reject")
    assert (record.id, record.type) == ("d-1", "order.created")
    record, _ = read(
        translate(Incoming("t", b"{}", {"postroom-id": "e", **headers}), names), "hash"
    )
    assert record.id == "e"


def test_a_record_without_an_id_is_known_by_topic_key_and_body():  # R-A4
    record = Incoming("t", b"{}", {}, "k", "t/0/1")
    tombstone = {TOMBSTONE: "true"}
    others = [
        record,
        record._replace(topic="u"),
        record._replace(key="other"),
        record._replace(key=None),
        record._replace(key=""),
        record._replace(body=b"[]"),
        record._replace(body=b""),
        record._replace(body=b"", headers=tombstone),
        record._replace(body=b"", headers=tombstone, key="other"),
        record._replace(topic="t1:k", key=""),
    ]
    assert len({record_hash(each) for each in others}) == len(others)
    assert record_hash(record._replace(offset="t/0/2")) == record_hash(record)
    assert identify(record, "hash") == (record_hash(record), True)
