"""CloudEvents in binary mode, using the official SDK's binding for RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from postroom.brokers.cloudevents import need_sdk, to_cloudevent
from postroom.record import Record


def cloud_headers(source: str) -> Callable[[Record], Mapping[str, str]]:
    """Return the function that builds an event's `ce-…` headers. Raises MissingExtraError."""
    need_sdk()
    from cloudevents.core.bindings.rabbitmq import to_binary_event

    def headers(record: Record) -> Mapping[str, str]:
        # The content type is a property, and the payload is sent unchanged.
        return to_binary_event(to_cloudevent(record, source)).headers

    return headers
