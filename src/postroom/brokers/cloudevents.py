"""An event as a CloudEvent 1.0, using the official SDK; each broker uses the SDK's own binding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.errors import MissingExtraError
from postroom.model.clock import from_microseconds
from postroom.record import Record

if TYPE_CHECKING:
    from cloudevents.core.v1.event import CloudEvent


def need_sdk() -> None:
    """Raise MissingExtraError unless the SDK is installed."""
    try:
        import cloudevents.core.v1.event  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("cloudevents", "cloudevents") from error


def to_cloudevent(record: Record, source: str) -> CloudEvent:
    """Return the attributes of an event, without its data: the payload is sent unchanged.

    Extension names consist of lowercase letters and digits, as the specification requires. Other
    fields are in postroom's own headers, which are sent besides these.
    """
    from cloudevents.core.v1.event import CloudEvent

    attributes: dict[str, Any] = {
        "id": record.id,
        "source": source,
        "type": record.type,
        "time": from_microseconds(record.occurred_us),
        "datacontenttype": record.content_type,
    }
    extensions = {
        "subject": record.aggregate_id,
        "partitionkey": record.key,
        "correlationid": record.correlation_id,
        "kseq": None if record.kseq is None else str(record.kseq),
    }
    if record.headers_json is not None:  # the extension for distributed tracing
        headers = record.headers
        extensions |= {name: headers.get(name) for name in ("traceparent", "tracestate")}
    attributes |= {name: value for name, value in extensions.items() if value}
    return CloudEvent(attributes)
