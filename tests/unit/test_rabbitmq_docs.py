"""The pages about RabbitMQ say what the code does."""

from __future__ import annotations

import re
from dataclasses import fields

from postroom.brokers.cloudevents import to_cloudevent
from postroom.brokers.rabbitmq import RabbitSettings
from postroom.testing.broker_tools import make_record
from tests.unit.test_kafka_docs import DOCS, table


def test_every_option_and_its_default():
    listed = {
        row[0].strip("`"): row[1].strip("`") for row in table("how-to/rabbitmq.md", "All options")
    }
    assert listed == {field.name: repr(field.default) for field in fields(RabbitSettings)}


def test_every_property():
    listed = [row[0].strip("`") for row in table("reference/message-format.md", "RabbitMQ")]
    assert listed == [
        "message_id", "type", "content_type", "correlation_id", "timestamp", "app_id",
        "delivery_mode", "headers", "body",
    ]  # fmt: skip


def test_every_attribute_of_cloudevents():
    record = make_record(
        key="order-1", aggregate_id="1", correlation_id="c-1", kseq=7,
        headers_json='{"traceparent": "00-ab-cd-01", "tracestate": "a=b"}',
    )  # fmt: skip
    names = set(to_cloudevent(record, "/shop").get_attributes()) - {"datacontenttype"}
    page = (DOCS / "reference/message-format.md").read_text()
    assert set(re.findall(r"`ce_(\w+)`", page)) == names


def test_what_confirms_do_not_do_is_said():
    page = re.sub(r"\s+", " ", (DOCS / "how-to/rabbitmq.md").read_text())
    assert "Confirms do not remove re-sends." in page
    assert "quorum queues on three nodes" in page
    assert "One key alone is as slow as its round trips" in page
