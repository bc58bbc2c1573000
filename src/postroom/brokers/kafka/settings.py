"""The settings of a Kafka destination, validated when they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from confluent_kafka import KafkaException, Producer

from postroom.errors import ConfigError
from postroom.event import MAX_TOPIC_BYTES
from postroom.model.option_reader import check_numbers, check_words, read_options, readers
from postroom.model.text import check_setting
from postroom.model.url import MASK, Url, is_secret
from postroom.options import Compression, Delivery
from postroom.record import Record

DEFAULT_PORT = 9092

_GUARDED: Mapping[str, str] = {
    "bootstrap.servers": "it is the first argument",
    "metadata.broker.list": "use the first argument",
    "enable.idempotence": "it is always on",
    "acks": "it is always all",
    "request.required.acks": "acks is always all",
    "enable.gapless.guarantee": "it is always on: without it, later events overtake a failed one",
    "message.timeout.ms": "use publish_seconds",
    "delivery.timeout.ms": "use publish_seconds",
    "message.send.max.retries": "use publish_seconds",
    "retries": "use publish_seconds",
    "transactional.id": "use delivery='transactional': each lane has its own id",
    "compression.type": "use compression",
    "compression.codec": "use compression",
    "linger.ms": "use linger_seconds",
    "queue.buffering.max.ms": "use linger_seconds",
    "batch.size": "use batch_bytes",
    "batch.num.messages": "use batch_bytes",
    "message.max.bytes": "the topic's own limit applies",
    "allow.auto.create.topics": "use create_topics",
    "error_cb": "the relay reports errors",
    "on_delivery": "the relay reports outcomes",
    "logger": "lines go to the logger postroom.brokers.kafka",
    "log_cb": "lines go to the logger postroom.brokers.kafka",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Where events go, and how long to wait. Times are seconds or timedeltas.

    servers             host:port, several separated by commas
    topic               send everything there; otherwise each event goes to its own topic
    key                 `key` keeps the order of each key; `id` spreads single events (no order)
    compression         snappy, lz4, zstd, gzip or none
    create_topics       create a missing topic with this number of `partitions` and
                        `replication`, or the broker's defaults
    linger_seconds      how long a message waits for others to share its batch
    batch_bytes         the largest batch; smaller where a topic's limit requires it
    publish_seconds     after this long without a confirm a message is given up and purged
    answer_seconds      how long a request to the cluster waits for its answer
    delivery            `transactional` sends the events of each lane in their own transaction
    transactional_prefix    the prefix of transactional ids
    cloudevents         a `source`: adds the attributes of CloudEvents in binary mode
    config              settings of librdkafka, for TLS, SASL and the like
    """

    servers: str
    topic: str | None = None
    key: Literal["key", "id"] = "key"
    compression: Compression = "snappy"
    create_topics: bool = False
    partitions: int | None = None
    replication: int | None = None
    linger_seconds: float = 0.001
    batch_bytes: int = 500_000
    publish_seconds: float = 15.0
    answer_seconds: float = 3.0
    delivery: Delivery = "idempotent"
    transactional_prefix: str = "postroom"
    cloudevents: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # it has passwords

    def __post_init__(self) -> None:
        if not isinstance(self.servers, str) or not self.servers.strip():
            raise ConfigError("Kafka: name at least one server, as in localhost:9092")
        check_words(self, "Kafka")
        for name in ("topic", "cloudevents", "transactional_prefix"):
            value = getattr(self, name)
            if value is not None:
                check_setting(f"Kafka: {name}", value, MAX_TOPIC_BYTES)
        check_numbers(self, "Kafka", may_be_zero=("linger_seconds",))
        if (self.partitions or self.replication) and not self.create_topics:
            raise ConfigError("Kafka: partitions and replication need create_topics=True")
        for name in self.config:
            if name in _GUARDED:
                raise ConfigError(f"Kafka: {name} cannot be set here; {_GUARDED[name]}")
        self._try_out()

    def topic_of(self, record: Record) -> str:
        return self.topic or record.topic

    # -- as settings of librdkafka ------------------------------------------------------------
    def client(self) -> dict[str, Any]:
        """Return the settings of every client: servers, login, timeouts."""
        return {
            "client.id": "postroom",
            # Short, so that a request after a long outage still succeeds within its time limit.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": _milliseconds(self.answer_seconds / 6),
            "socket.timeout.ms": _milliseconds(self.publish_seconds),
            **self.config,
            "bootstrap.servers": self.servers,
            # Meant for consumers, but works here: asking for a topic must not create it.
            "allow.auto.create.topics": False,
        }

    def producer(self) -> dict[str, Any]:
        """Return the settings of every producer (K1); the caller adds those for batches."""
        return {
            "partitioner": "murmur2_random",  # like Java's: other producers agree on partitions
            # A lost reply is requested again, without a duplicate, while the call still waits.
            "request.timeout.ms": _milliseconds(self.publish_seconds / 3),
            **self.client(),
            "enable.idempotence": True,
            "acks": "all",
            "enable.gapless.guarantee": True,
            "message.timeout.ms": 0,  # never by a timeout: an expired message leaves a gap
            "compression.type": self.compression,
            # The broker enforces the topic's limit. A limit in the client has no use.
            "message.max.bytes": 64_000_000,
        }

    def transactional(self, transactional_id: str) -> dict[str, Any]:
        """Return the settings of a lane's producer (K6); the caller adds the batch size."""
        own = {"enable.gapless.guarantee", "message.timeout.ms"}  # a transaction fails as a whole
        return {
            **{name: value for name, value in self.producer().items() if name not in own},
            "transactional.id": transactional_id,
            # If the relay dies, read_committed consumers wait at most this long for the abort.
            "transaction.timeout.ms": _milliseconds(self.publish_seconds * 2),
            "linger.ms": self.linger_seconds * 1_000,
        }

    def batching(self, batch_bytes: int, *, one_by_one: bool) -> dict[str, Any]:
        """Return the settings for collecting messages into batches."""
        together: dict[str, Any] = {"batch.num.messages": 1} if one_by_one else {}
        return {
            **together,
            "batch.size": min(self.batch_bytes, batch_bytes),
            "linger.ms": 0 if one_by_one else self.linger_seconds * 1_000,
        }

    # -- secrets ------------------------------------------------------------------------------
    def mask(self, text: str) -> str:
        """Return a text with its secrets replaced."""
        for name, value in self.config.items():
            if isinstance(value, str) and len(value) > 3 and is_secret(name, value):
                text = text.replace(value, MASK)
        return text

    def shown(self) -> str:
        """Return the settings that differ from the default, for display."""
        plain = KafkaSettings.__dataclass_fields__
        parts = [repr(self.servers)]
        parts += [
            f"{name}={getattr(self, name)!r}"
            for name in plain
            if name not in ("servers", "config") and getattr(self, name) != plain[name].default
        ]
        if self.config:
            masked = {n: MASK if is_secret(n, str(v)) else v for n, v in self.config.items()}
            parts.append(f"config={masked}")
        return ", ".join(parts)

    def _try_out(self) -> None:
        """Let librdkafka parse its settings; without servers it does not connect."""
        config = {**self.producer(), **self.batching(self.batch_bytes, one_by_one=False)}
        del config["bootstrap.servers"]
        try:
            Producer({**config, "log_level": 0}, logger=_SILENCE)
        except (KafkaException, TypeError, ValueError) as error:
            said = error.args[0]
            problem = said.str() if isinstance(error, KafkaException) else str(said)
            raise ConfigError(f"Kafka: {self.mask(problem)}") from None

    # -- from a URL ---------------------------------------------------------------------------
    @classmethod
    def read(cls, where: str | Url, given: Mapping[str, Any]) -> KafkaSettings:
        """Read `kafka://user:password@host:port,host:port?option=value`, and options by name.

        An option with a dot in its name goes to librdkafka as it is.
        """
        url = Url.parse(where)
        if url.scheme != "kafka" or url.driver or url.path not in ("", "/"):
            raise ConfigError(
                "kafka URL: write kafka://host:9092,host:9092?topic=…, without a path"
            )
        if not url.hosts:
            raise ConfigError("kafka URL: a host is missing, as in kafka://localhost:9092")
        dotted = {name: str for name, _ in url.query if "." in name}
        found = read_options(url, {**_READERS, **dotted}, given, also=("config",))
        config = {**login(url), **{n: found.pop(n) for n in dotted}, **found.pop("config", {})}
        return cls(servers=servers(url), config=config, **found)


_READERS = readers(KafkaSettings, skip=("servers", "config"))


def servers(url: Url) -> str:
    """Return the hosts of a URL as librdkafka takes them."""
    return ",".join(
        f"{f'[{host}]' if ':' in host else host}:{port or DEFAULT_PORT}" for host, port in url.hosts
    )


def login(url: Url) -> dict[str, str]:
    """Return the settings for a user in the URL: by default a password is never sent in
    clear text.
    """
    if url.user is None:
        return {}
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": url.user,
        "sasl.password": url.password or "",
    }


class _Silence:
    def log(self, *_: object) -> None:
        pass


_SILENCE = _Silence()


def _milliseconds(value: float) -> int:
    return max(10, round(value * 1_000))
