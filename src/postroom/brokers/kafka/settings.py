"""What can be set about the way to Kafka, checked the moment it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from confluent_kafka import KafkaException, Producer

from postroom.errors import ConfigError
from postroom.event import MAX_TOPIC_BYTES
from postroom.model.text import check_setting
from postroom.model.url import MASK, Url, boolean, is_secret, one_of, seconds, whole_number
from postroom.record import Record

DEFAULT_PORT = 9092
COMPRESSIONS = ("snappy", "lz4", "zstd", "gzip", "none")

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
    """See KafkaBroker for what each one means. All times are seconds."""

    servers: str
    topic: str | None = None
    key: Literal["key", "id"] = "key"
    compression: str = "snappy"
    create_topics: bool = False
    partitions: int | None = None
    replication: int | None = None
    linger_seconds: float = 0.001
    batch_bytes: int = 500_000
    publish_seconds: float = 15.0
    answer_seconds: float = 3.0
    delivery: Literal["idempotent", "transactional"] = "idempotent"
    transactional_prefix: str = "postroom"
    cloudevents: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.servers, str) or not self.servers.strip():
            raise ConfigError("Kafka: name at least one server, as in localhost:9092")
        _choice("key", self.key, ("key", "id"))
        _choice("compression", self.compression, COMPRESSIONS)
        _choice("delivery", self.delivery, ("idempotent", "transactional"))
        for name in ("topic", "cloudevents", "transactional_prefix"):
            value = getattr(self, name)
            if value is not None:
                check_setting(f"Kafka: {name}", value, MAX_TOPIC_BYTES)
        for name in (
            "publish_seconds",
            "answer_seconds",
            "batch_bytes",
            "partitions",
            "replication",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"Kafka: {name} must be more than 0, not {value!r}")
        if not self.linger_seconds >= 0:
            raise ConfigError(
                f"Kafka: linger_seconds must be 0 or more, not {self.linger_seconds!r}"
            )
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
        """Return what every client needs: where, as whom, how patient."""
        return {
            "client.id": "postroom",
            # Short, so that a question after a long outage still finds the way in its own time.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": _milliseconds(self.answer_seconds / 6),
            "socket.timeout.ms": _milliseconds(self.publish_seconds),
            **self.config,
            "bootstrap.servers": self.servers,
            # It is made for consumers, and works here: to ask for a topic must not create it.
            "allow.auto.create.topics": False,
        }

    def producer(self) -> dict[str, Any]:
        """Return what every producer needs (K1); the caller adds how it collects batches."""
        return {
            "partitioner": "murmur2_random",  # as Java's own: other producers agree on partitions
            # A lost reply is asked for again, without a copy, while the call still waits.
            "request.timeout.ms": _milliseconds(self.publish_seconds / 3),
            **self.client(),
            "enable.idempotence": True,
            "acks": "all",
            "enable.gapless.guarantee": True,
            "message.timeout.ms": 0,  # never by itself: a message that expires leaves a gap
            "compression.type": self.compression,
            # The topic's limit is for the broker to judge. A client's own is in nobody's interest.
            "message.max.bytes": 64_000_000,
        }

    def transactional(self, transactional_id: str) -> dict[str, Any]:
        """Return what the producer of a lane needs (K6); the caller adds the size of batches."""
        own = {"enable.gapless.guarantee", "message.timeout.ms"}  # a transaction fails as a whole
        return {
            **{name: value for name, value in self.producer().items() if name not in own},
            "transactional.id": transactional_id,
            # If we die, readers of what is committed wait no longer than this for the abort.
            "transaction.timeout.ms": _milliseconds(self.publish_seconds * 2),
            "linger.ms": self.linger_seconds * 1_000,
        }

    def batching(self, batch_bytes: int, *, one_by_one: bool) -> dict[str, Any]:
        """Return how a producer collects messages into batches."""
        together: dict[str, Any] = {"batch.num.messages": 1} if one_by_one else {}
        return {
            **together,
            "batch.size": min(self.batch_bytes, batch_bytes),
            "linger.ms": 0 if one_by_one else self.linger_seconds * 1_000,
        }

    # -- secrets ------------------------------------------------------------------------------
    def mask(self, text: str) -> str:
        """Return a text, with whatever is secret in it replaced."""
        for name, value in self.config.items():
            if isinstance(value, str) and len(value) > 3 and is_secret(name, value):
                text = text.replace(value, MASK)
        return text

    def shown(self) -> str:
        """Return the settings that are not the default, for people."""
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
        """Let librdkafka read its settings; without servers it connects to nothing."""
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
    def from_url(cls, url: Url) -> KafkaSettings:
        """Read `kafka://user:password@host:port,host:port?option=value`.

        An option with a dot in its name goes to librdkafka as it is.
        """
        if url.driver or url.path not in ("", "/"):
            raise ConfigError(
                "kafka URL: write kafka://host:9092,host:9092?topic=…, without a path"
            )
        if not url.hosts:
            raise ConfigError("kafka URL: a host is missing, as in kafka://localhost:9092")
        names = {name: str for name, _ in url.query if "." in name}
        given: dict[str, Any] = url.options({**OPTIONS, **names})
        config: dict[str, Any] = {name: given.pop(name) for name in names}
        if url.user is not None:  # a password never goes over an open line unless asked to
            config = {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": url.user,
                "sasl.password": url.password or "",
                **config,
            }
        servers = ",".join(
            f"{f'[{host}]' if ':' in host else host}:{port or DEFAULT_PORT}"
            for host, port in url.hosts
        )
        return cls(servers=servers, config=config, **given)


OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "topic": str,
    "key": one_of("key", "id"),
    "compression": one_of(*COMPRESSIONS),
    "create_topics": boolean,
    "partitions": whole_number,
    "replication": whole_number,
    "linger_seconds": seconds,
    "batch_bytes": whole_number,
    "publish_seconds": seconds,
    "answer_seconds": seconds,
    "delivery": one_of("idempotent", "transactional"),
    "transactional_prefix": str,
    "cloudevents": str,
}


class _Silence:
    def log(self, *_: object) -> None:
        pass


_SILENCE = _Silence()


def _choice(name: str, value: object, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ConfigError(f"Kafka: {name} must be one of {', '.join(words)}, not {value!r}")


def _milliseconds(value: float) -> int:
    return max(10, round(value * 1_000))
