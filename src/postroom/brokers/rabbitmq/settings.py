"""The settings of a RabbitMQ destination, from Python or from its URL."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pamqp.commands import Exchange, Queue

from postroom.errors import ConfigError
from postroom.model.option_reader import check_numbers, check_words, read_options, readers
from postroom.model.suggest import unknown
from postroom.model.url import Url
from postroom.options import QueueType

HEADER = "header:"
_ROUTING_KEYS = ("topic", "type", "key")
_EXCHANGE_TYPES = ("direct", "fanout", "headers", "topic")
_MAX_SHORT = 255  # maximum bytes of an AMQP name


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitSettings:
    """Where events go, and how long to wait. Times are seconds or timedeltas.

    exchange            where all events go; '' is the default exchange, whose routing keys are
                        the names of queues
    exchange_from       'topic': each event goes to the exchange that its topic names
    exchange_type       for declaring: topic, direct, fanout, headers, or a plug-in's `x-…`
    routing_key         the source of the routing key: `topic`, `type`, `key`, or `header:NAME` of
                        the event; `topic` by default, `type` with exchange_from
    declare             True: declare exchange, queue and bindings on every connection, all durable;
                        False: only check, on opening, that they exist
    queue               a queue to declare and bind, or to check
    queue_type          quorum, or classic
    single              declare the queue with a single active consumer, which keeps the order of
                        keys; other consumers stand by
    bindings            the routing keys that `queue` is bound with; `#` by default for a topic
                        exchange. A direct exchange has no default
    confirm_seconds     after this long without a confirm a message's outcome is unknown
    connect_seconds     time limit for opening a connection or a channel
    heartbeat_seconds   interval of AMQP heartbeats
    app_id              the message property of that name
    cloudevents         the `source` of CloudEvents: adds their attributes, in binary mode
    cafile, certfile, keyfile, verify   for amqps: trusted CA, client certificate, verification
    """

    exchange: str = ""
    exchange_from: Literal["topic"] | None = None
    exchange_type: str = "topic"
    routing_key: str | None = None
    declare: bool = False
    queue: str | None = None
    queue_type: QueueType = "quorum"
    single: bool = True
    bindings: tuple[str, ...] | None = None
    confirm_seconds: float = 15.0
    connect_seconds: float = 10.0
    heartbeat_seconds: float = 30.0
    app_id: str = "postroom"
    cloudevents: str | None = None
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        for text in (self.app_id, *(self.bindings or ())):
            if len(text.encode()) > _MAX_SHORT:
                raise ConfigError(f"{text[:40]!r}… is longer than {_MAX_SHORT} bytes")
        try:
            Exchange.Declare(exchange=self.exchange)
            Queue.Declare(queue=self.queue or "")
        except ValueError as error:  # pamqp is stricter than RabbitMQ, and cannot send others
            raise ConfigError(f"{error}: use up to 127 letters, digits and -_.:@#,/+") from error
        check_words(self)
        if self.exchange_from and self.exchange:
            raise ConfigError("give exchange or exchange_from, not both")
        if self.exchange_type not in _EXCHANGE_TYPES and not self.exchange_type.startswith("x-"):
            raise ConfigError(unknown("exchange_type", self.exchange_type, _EXCHANGE_TYPES))
        key = self.routing_key
        named = key is not None and key.startswith(HEADER) and key != HEADER
        if key is not None and key not in _ROUTING_KEYS and not named:
            raise ConfigError(unknown("routing_key", key, (*_ROUTING_KEYS, HEADER + "NAME")))
        check_numbers(self)
        if self.heartbeat_seconds < 1 or self.heartbeat_seconds != int(self.heartbeat_seconds):
            raise ConfigError("heartbeat_seconds must be a whole number of seconds")
        if self.cloudevents == "":
            raise ConfigError("cloudevents needs a source, for example cloudevents=/shop/orders")
        if self.keyfile and not self.certfile:
            raise ConfigError("keyfile needs a certfile")
        self._check_declaration()

    def _check_declaration(self) -> None:
        if self.bindings and not (self.declare and self.queue and self.exchange):
            raise ConfigError("bindings need declare=on, a queue and an exchange")
        if self.queue and self.exchange_from:
            raise ConfigError(
                "a queue cannot be bound when topics choose the exchange: leave the queue out"
            )
        binds = self.declare and self.queue and self.exchange and self.bindings is None
        if binds and self.exchange_type not in ("topic", "fanout"):
            raise ConfigError(
                f"the {self.exchange_type} exchange needs the routing keys that bind the "
                "queue to it, for example bindings=order.created,order.paid"
            )

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context for amqps. Raises ConfigError for unusable files."""
        try:
            context = ssl.create_default_context(cafile=self.cafile)
            if self.certfile:
                context.load_cert_chain(self.certfile, self.keyfile)
        except OSError as error:
            raise ConfigError(f"cafile, certfile or keyfile cannot be used: {error}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


_READERS = readers(RabbitSettings)


def read_settings(url: Url, given: Mapping[str, Any]) -> RabbitSettings:
    """Return the settings from the URL and from Python."""
    if url.scheme not in ("amqp", "amqps"):
        raise ConfigError(f"a RabbitMQ URL begins with amqp:// or amqps://, not {url.scheme}:")
    merged = RabbitSettings(**read_options(url, _READERS, given))
    tls = {"cafile", "certfile", "keyfile"}
    if url.scheme == "amqp" and any(getattr(merged, name) for name in tls):
        raise ConfigError("certificates need an amqps:// URL")
    return merged
