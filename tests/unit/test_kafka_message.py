"""An event as a message of Kafka."""

from __future__ import annotations

import json
import sys

import pytest

from postroom.brokers.kafka.message import MOST_BESIDES, writer
from postroom.brokers.kafka.partitions import NoPartitionError, Partitions
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.errors import EventError, MissingExtraError
from postroom.event import MAX_CAUSATION, MAX_HEADERS_BYTES, MAX_ID_BYTES, MAX_NAME_BYTES
from postroom.testing.broker_tools import make_record


def write(record, **options):
    settings = KafkaSettings(servers="h:1", **options)
    return writer(settings, Partitions(settings, lambda _: 6))(record, "the-outbox")


def test_key_value_topic_and_headers():
    record = make_record(1, key="order-1", topic="orders", payload=b"\x00\xff")
    assert write(record) == (
        "orders",
        b"\x00\xff",
        "order-1",
        [
            ("postroom-id", "event-1"),
            ("postroom-type", "order.created"),
            ("content-type", "application/json"),
            ("postroom-schema-version", "1"),
            ("postroom-occurred-at", "2023-11-14T22:13:20+00:00"),
            ("postroom-key", "order-1"),
        ],
        -1,  # librdkafka chooses the partition
    )
    assert write(record, topic="all").topic == "all"
    assert write(record, key="id").key == "event-1"
    assert write(make_record(1)).key is None


def test_a_tombstone_has_no_value():
    record = make_record(1, key="order-1", payload=b"", options_json='{"tombstone":true}')
    message = write(record)
    assert (message.value, message.key, message.partition) == (None, "order-1", -1)
    assert ("postroom-tombstone", "true") in message.headers
    assert write(record, cloudevents="/shop").value is None
    assert message.size == write(record._replace(payload=b"12345")).size
    assert write(record._replace(options_json='{"tombstone":"no"}')).value == b""


def test_a_partition_that_the_event_names():
    def partition(options, **settings):
        return write(make_record(1, key="k", options_json=options), **settings).partition

    assert partition('{"partition":5}') == 5
    assert partition('{"partition_key":"customer-7"}') == 1
    crc32, none = {"partitioner": "consistent_random"}, {"partitioner": "random"}
    assert partition('{"partition_key":"customer-7"}', config=crc32) == 2
    assert partition('{"partition_key":"customer-7"}', config=none) == -1
    with pytest.raises(NoPartitionError, match="for partition 6, but 'contract' has 6 partitions"):
        partition('{"partition":6}')


@pytest.mark.parametrize(
    "options",
    ['{"partition":"1"}', '{"partition":-1}', '{"partition":true}', '{"partition_key":1}'],
)
def test_options_of_a_row_that_add_did_not_write(options):
    with pytest.raises(EventError, match="partition"):
        write(make_record(1, options_json=options))


def test_cloudevents_stand_beside_our_headers():
    record = make_record(
        1, key="order-1", aggregate_id="o1", correlation_id="c1", kseq=3,
        headers_json='{"traceparent": "00-ab-cd-01", "mine": "x"}',
    )  # fmt: skip
    headers = write(record, cloudevents="/shop").headers
    assert headers[:10] == [
        ("ce_id", b"event-1"),
        ("ce_source", b"/shop"),
        ("ce_type", b"order.created"),
        ("ce_time", b"2023-11-14T22:13:20Z"),
        ("ce_subject", b"o1"),
        ("ce_partitionkey", b"order-1"),
        ("ce_correlationid", b"c1"),
        ("ce_kseq", b"3"),
        ("ce_traceparent", b"00-ab-cd-01"),
        ("ce_specversion", b"1.0"),
    ]
    assert headers[10:] == write(record).headers


def test_cloudevents_need_their_sdk(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudevents.core.v1.event", None)
    with pytest.raises(MissingExtraError, match=r"postroom\[cloudevents\]"):
        write(make_record(1), cloudevents="/shop")


def test_nothing_besides_the_payload_is_ever_more_than_this():
    name = "ž" * (MAX_NAME_BYTES // 2)
    largest = make_record(
        1, id="i" * MAX_ID_BYTES, key=name, type=name, aggregate_type=name, aggregate_id=name,
        correlation_id=name, content_type=name, kseq=2**63,
        causation_json=json.dumps([[name, name]] * MAX_CAUSATION),
        headers_json='{"h": "' + "x" * (MAX_HEADERS_BYTES - 1) + '"}', payload=b"",
    )  # fmt: skip
    size = write(largest, cloudevents="/shop").size
    assert MAX_HEADERS_BYTES < size < MOST_BESIDES
