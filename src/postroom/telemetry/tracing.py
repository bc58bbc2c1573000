"""Traces through the OpenTelemetry API; the application chooses SDK and exporter.

`install` stores the current trace context with every added event, as W3C headers, which are also
sent to the broker. `TracingObserver` links a relay's sends to it, and `traced` links handlers.
Without an SDK no spans are created.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, Final, TypeVar, cast

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from postroom._version import __version__
from postroom.event import Event
from postroom.model import add_hooks
from postroom.observer import Fact, Sent
from postroom.record import Record

F = TypeVar("F", bound=Callable[..., Any])

MAX_LINKS: Final = 128  # the default limit of an SDK
_W3C = TraceContextTextMapPropagator()
_SYSTEMS = {"amqp": "rabbitmq", "amqps": "rabbitmq", "handlers": "postroom"}
_NO_SDK = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)


def install() -> None:
    """Store the trace context with every event added in this process from now on."""
    if carry not in add_hooks.hooks:
        add_hooks.hooks.append(carry)


def uninstall() -> None:
    """Undo `install`."""
    if carry in add_hooks.hooks:
        add_hooks.hooks.remove(carry)


def carry(event: Event) -> Event:
    """Return the event with the current trace context in its headers, unless it has one."""
    if "traceparent" in event.headers or not trace.get_current_span().get_span_context().is_valid:
        return event
    headers: dict[str, str] = {}
    _W3C.inject(headers)
    return replace(event, headers={**event.headers, **headers})


class TracingObserver:
    """Creates a span `send <topic>` for each topic of a publish call, linked to the spans that
    added the events. `destination` is the scheme of the broker.
    """

    def __init__(self, destination: str = "") -> None:
        self._system = _SYSTEMS.get(destination, destination or "postroom")
        self._tracer = _tracer()

    def observe(self, fact: Fact) -> None:
        if not isinstance(fact, Sent) or not has_sdk():
            return
        end = time.time_ns()
        start = end - int(fact.seconds * 1_000_000_000)
        topics: dict[str, list[Record]] = {}
        for record in fact.records:
            topics.setdefault(record.topic, []).append(record)
        for topic, records in topics.items():
            attributes: dict[str, str | int] = {
                "messaging.system": self._system,
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": topic,
                "messaging.batch.message_count": len(records),
            }
            if len(records) == 1:
                attributes["messaging.message.id"] = records[0].id
            self._tracer.start_span(
                f"send {topic}",
                kind=trace.SpanKind.PRODUCER,
                attributes=attributes,
                links=_links(records),
                start_time=start,
            ).end(end)


@contextmanager
def processing(event: Any) -> Iterator[trace.Span]:
    """Open a span `process <type>` for handling an event, linked to the span that added it.

    Takes a handler's argument: any object with `type`, `topic`, `id` and `headers`. An error that
    leaves the block is recorded.
    """
    context = _context(event.headers)
    attributes = {
        "messaging.system": "postroom",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": event.topic,
        "messaging.message.id": event.id,
    }
    with _tracer().start_as_current_span(
        f"process {event.type}",
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=[] if context is None else [trace.Link(context)],
    ) as span:
        yield span


def traced(handler: F) -> F:
    """Run a handler in its own span; events that it adds continue the trace.

    @handlers.on("order.created")
    @traced
    async def charge(event, tx): ...
    """
    if inspect.iscoroutinefunction(handler):

        @wraps(handler)
        async def in_span(event: Any, *rest: Any) -> Any:
            if not has_sdk():
                return await handler(event, *rest)
            with processing(event):
                return await handler(event, *rest)

        return cast("F", in_span)

    @wraps(handler)
    def in_sync_span(event: Any, *rest: Any) -> Any:
        if not has_sdk():
            return handler(event, *rest)
        with processing(event):
            return handler(event, *rest)

    return cast("F", in_sync_span)


def has_sdk() -> bool:
    """Return whether an OpenTelemetry SDK is installed."""
    return not isinstance(trace.get_tracer_provider(), _NO_SDK)


def _tracer() -> trace.Tracer:
    return trace.get_tracer("postroom", __version__)


def _context(headers: Mapping[str, str]) -> trace.SpanContext | None:
    span = trace.get_current_span(_W3C.extract(headers))
    context = span.get_span_context()
    return context if context.is_valid and context.is_remote else None


def _links(records: Sequence[Record]) -> list[trace.Link]:
    links: list[trace.Link] = []
    for record in records:
        if record.headers_json is not None and "traceparent" in record.headers_json:
            context = _context(record.headers)
            if context is not None:
                links.append(trace.Link(context))
                if len(links) == MAX_LINKS:
                    break
    return links
