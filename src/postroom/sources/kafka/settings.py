"""The settings of a Kafka source, validated when they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from postroom.brokers.kafka.settings import login, servers
from postroom.errors import ConfigError
from postroom.model.foreign_messages import Names
from postroom.model.option_reader import check_words, read_options, readers
from postroom.model.url import Url

_REJOIN_MS = 60_000
_SESSION_MS = 10_000
_GUARDED = {
    "enable.auto.commit": "offsets are committed after the handlers' commit",
    "enable.auto.offset.store": "offsets are committed after the handlers' commit",
    "group.id": "use group",
    "auto.offset.reset": "use start",
    "bootstrap.servers": "use the hosts of the URL",
    "partition.assignment.strategy": "it is always cooperative-sticky",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSourceSettings:
    """Which topics are consumed, and how.

    topic     the topics
    group     the consumer group: its members share the partitions
    start     where a group without committed offsets starts: earliest, or latest
    id_header, type_header    headers that hold the id and type in messages of foreign senders
    config    settings of librdkafka, by their own names
    """

    servers: str
    topic: tuple[str, ...]
    group: str
    start: Literal["earliest", "latest"] = "earliest"
    id_header: str = ""
    type_header: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # it has passwords

    def __post_init__(self) -> None:
        if not self.topic or not all(self.topic):
            raise ConfigError("kafka URL: topic is missing, as in ?topic=orders&group=payments")
        if not self.group:
            raise ConfigError("kafka URL: group is missing, as in ?topic=orders&group=payments")
        check_words(self, "Kafka")
        for name in self.config:
            if name in _GUARDED:
                raise ConfigError(f"Kafka: {name} cannot be set here; {_GUARDED[name]}")

    @property
    def names(self) -> Names:
        return Names(self.id_header, self.type_header)

    @property
    def session_seconds(self) -> float:
        """After this long without a heartbeat, the group goes on without a member."""
        given = str(self.config.get("session.timeout.ms", ""))
        return (int(given) if given.isdigit() else _SESSION_MS) / 1_000

    def client(self) -> dict[str, Any]:
        session = str(self.config.get("session.timeout.ms", ""))
        return {
            "client.id": "postroom",
            # How long a group waits for former members that do not rejoin. Polls never wait for
            # handlers here, so it can be shorter than librdkafka's five minutes.
            "max.poll.interval.ms": max(_REJOIN_MS, int(session) if session.isdigit() else 0),
            # After a frozen broker wakes up, the group waits that long for the former life of each
            # member. librdkafka's 45 s would be a pause of 45 s.
            "session.timeout.ms": _SESSION_MS,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            "isolation.level": "read_committed",
            "queued.max.messages.kbytes": 16_384,  # fetched, but not yet polled
            **self.config,
            "bootstrap.servers": self.servers,
            "group.id": self.group,
            "auto.offset.reset": self.start,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "partition.assignment.strategy": "cooperative-sticky",
            "allow.auto.create.topics": False,
        }

    @classmethod
    def read(cls, where: str | Url, given: Mapping[str, Any]) -> KafkaSourceSettings:
        """Return the settings from the URL and from Python."""
        url = Url.parse(where)
        if url.scheme != "kafka" or url.driver or url.path not in ("", "/") or not url.hosts:
            raise ConfigError("kafka URL: write kafka://host:9092?topic=…&group=…")
        dotted = {name: str for name, _ in url.query if "." in name}
        found = read_options(url, {**_READERS, **dotted}, given, also=("config",))
        config = {**login(url), **{n: found.pop(n) for n in dotted}, **found.pop("config", {})}
        topic = found.pop("topic", ())
        topics = (topic,) if isinstance(topic, str) else tuple(topic)
        group = found.pop("group", "")
        return cls(servers=servers(url), topic=topics, group=group, config=config, **found)


_READERS = readers(KafkaSourceSettings, skip=("servers", "config"))
