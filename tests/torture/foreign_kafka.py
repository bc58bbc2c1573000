"""Senders to Kafka that are not ours: kcat, the CloudEvents SDK, a router of Debezium's kind, and

everything in the corpus of odd records, by raw frames.
"""

from __future__ import annotations

import dataclasses
import json
from zlib import crc32

from cloudevents.core.bindings.kafka import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from confluent_kafka import KafkaException, Producer

from tests.scenario.kafka_corpus import CORPUS, TYPE
from tests.scenario.test_kafka_strangers import kcat
from tests.servers.kafka_wire import RawRecord, encode_batch, send_once
from tests.torture.marks import mark

TOPIC = "foreign"
PARTITIONS = 3
LARGEST = 350_000
HANDLED = ("no-headers",)  # a message without a type has the topic's, and that has a handler here
KEYS = 3


def kafka_ways(url):
    """Return the ways to send, by their names."""
    servers = url.removeprefix("kafka://").partition("?")[0]
    producer = Producer({"bootstrap.servers": servers, "message.timeout.ms": 5_000, "log_level": 0})

    def raw(record):
        # Once: what is sent again by itself would not be counted, and has two dead letters.
        partition = crc32(record.key or b"") % PARTITIONS
        if not send_once(servers, TOPIC, partition, encode_batch([record])):
            raise ConnectionError("the partition has no leader yet")

    def by_kcat(number):
        key = f"kcat-{number % KEYS}"
        line = f"{key}:{json.dumps({'mark': mark(number)})}"
        return lambda: kcat(f"kafka://{servers}", TOPIC, [line]), "done", key

    def kcat_tombstone(number):
        return lambda: kcat(f"kafka://{servers}", TOPIC, [f"{mark(number)}:"], "-Z"), "done", ""

    def cloud(convert):
        def way(number):
            key = f"cloud-{number % KEYS}"
            message = convert(cloud_event(number, key))

            def send():
                told = []
                producer.produce(
                    TOPIC, message.value, message.key, headers=message.headers,
                    on_delivery=lambda error, _: told.append(error),
                )  # fmt: skip
                producer.flush(10)
                if told != [None]:
                    raise KafkaException(*told)

            return send, "done", key

        return way

    def router(number):
        key = f"router-{number % KEYS}"
        headers = [(b"id", mark(number).encode()), (b"eventType", b"order.created")]
        return lambda: raw(RawRecord(b'{"n":1}', key.encode(), headers)), "done", key

    def good(number):
        key = f"raw-{number % KEYS}"
        body = json.dumps({"mark": mark(number)}).encode()
        return lambda: raw(RawRecord(body, key.encode(), [TYPE])), "done", key

    ways = {
        "kcat": by_kcat, "kcat tombstone": kcat_tombstone, "cloudevents binary":
        cloud(to_binary_event), "cloudevents structured": cloud(to_structured_event),
        "router": router, "good": good,
    }  # fmt: skip
    for odd in CORPUS:
        ways[odd.name] = _odd(odd, raw)
        ways[f"good beside {odd.name}"] = good
    return ways


def _odd(odd, raw):
    end = "done" if odd.end == "handled" or odd.name in HANDLED else "dead"
    return lambda number: (lambda: raw(marked(odd.record, number)), end, "")


def marked(record, number):
    """Return a record of the corpus that can be told from others like it, as odd as it was."""
    sign = mark(number).encode()
    headers = [
        (name, value + sign if name == b"postroom-id" and value else value)
        for name, value in record.headers
    ]
    value, key = record.value, record.key
    if value == b"{}":
        value = json.dumps({"mark": sign.decode()}).encode()
    elif key is None:
        key = sign
    if value is not None:
        value = value[:LARGEST]
    return dataclasses.replace(record, headers=headers, value=value, key=key)


def cloud_event(number, key):
    return CloudEvent(
        {
            "id": mark(number), "source": "/shop", "type": "order.created", "subject": "o-1",
            "datacontenttype": "application/json", "partitionkey": key,
        },
        data={"n": 1},
    )  # fmt: skip
