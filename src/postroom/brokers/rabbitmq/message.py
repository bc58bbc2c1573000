"""Converts a record to a message: exchange, routing key, properties and headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from postroom.broker import Outcome, Verdict
from postroom.brokers.rabbitmq.settings import HEADER, RabbitSettings
from postroom.model.envelope import write_headers
from postroom.record import Record, short_error

_MAX_KEY = 255


class Message(NamedTuple):
    """A message that is ready to send. Empty properties are left out of it."""

    record: Record
    exchange: str
    routing_key: str
    headers: Mapping[str, str]
    content_type: str
    correlation_id: str | None
    timestamp: int | None
    app_id: str


class Writer:
    """Writes messages, by the options."""

    def __init__(
        self,
        options: RabbitSettings,
        cloud: Callable[[Record], Mapping[str, str]] | None = None,
    ) -> None:
        self._exchange = options.exchange
        self._from_topic = options.exchange_from == "topic"
        self._app_id = options.app_id
        self._cloud = cloud
        what = options.routing_key or ("type" if self._from_topic else "topic")
        self._header = what.removeprefix(HEADER) if what.startswith(HEADER) else None
        self._routing_key: Callable[[Record], str | None] = {
            "topic": lambda record: record.topic,
            "type": lambda record: record.type,
            "key": lambda record: record.key,
        }.get(what, lambda record: record.headers.get(self._header or ""))
        self._what = what

    def exchange_of(self, record: Record) -> str:
        return record.topic if self._from_topic else self._exchange

    def write(self, record: Record, outbox_id: str) -> Message | Outcome:
        """Return the message, or why it cannot be made."""
        try:
            routing_key = self._routing_key(record)
        except Exception as error:  # its headers are invalid
            return Outcome(Verdict.REJECTED, short_error(error), local=True)
        if routing_key is None:
            return Outcome(
                Verdict.MISCONFIGURED,
                f"the routing key is taken from the event's {self._what}, which is missing",
                local=True,
            )
        if self._header and len(routing_key.encode()) > _MAX_KEY:
            return Outcome(
                Verdict.MISCONFIGURED,
                f"the event's {self._what} cannot be a routing key: it is longer than "
                f"{_MAX_KEY} bytes",
                local=True,
            )
        headers: dict[str, str] = {}
        try:
            for name, value in write_headers(record, outbox_id):
                headers.setdefault(name, value)  # postroom's come first and stay
            if self._cloud is not None:
                headers |= self._cloud(record)
        except Exception as error:  # it cannot be encoded as a message
            return Outcome(Verdict.REJECTED, short_error(error), local=True)
        seconds = record.occurred_us // 1_000_000
        return Message(
            record,
            record.topic if self._from_topic else self._exchange,
            routing_key,
            headers,
            record.content_type,
            record.correlation_id,
            seconds if seconds >= 0 else None,  # AMQP has no times before 1970
            self._app_id,
        )
