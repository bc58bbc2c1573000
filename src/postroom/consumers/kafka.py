"""Kafka as a source: a member of a consumer group, polled by a thread of its own.

The thread polls whatever the handlers do, so a slow handler never costs the membership: when
enough is in hand, partitions are paused and the polls go on. Offsets are committed after the
database has committed, and only up to the first message that is not done. A partition that is
taken away is lost at once: nothing of it is begun, acknowledged or committed any more.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from postroom.consumers.kafka_message import incoming
from postroom.consumers.offsets import Partition
from postroom.errors import ConfigError
from postroom.record import short_error
from postroom.source import Connection, Incoming, SourceCapabilities
from postroom.url import MASK, Url, is_secret, one_of, unknown

_log = logging.getLogger(__name__)
_DEFAULT_PORT = 9092
_POLL_SECONDS = 0.05
_MOST = 500  # messages handed over at once
_ENOUGH, _ENOUGH_BYTES = 2_000, 16_000_000  # arrived and not yet asked for: partitions are paused
_ANSWER_SECONDS = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_REJOIN_MS = 60_000
_LOOK_SECONDS = 0.5
_UNREACHABLE = {KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION}
_REBALANCING = {KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS}  # it passes
_GUARDED = {
    "enable.auto.commit": "offsets are committed after the handlers' commit",
    "enable.auto.offset.store": "offsets are committed after the handlers' commit",
    "group.id": "use group",
    "auto.offset.reset": "use start",
    "bootstrap.servers": "they are the hosts of the URL",
    "partition.assignment.strategy": "it is always cooperative-sticky",
}
_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "topic": lambda text: tuple(text.split(",")),
    "group": str,
    "start": one_of("earliest", "latest"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSourceOptions:
    """What is consumed, and how.

    topic     the topics
    group     the consumer group: its members share the partitions
    start     where a group begins that has never committed: earliest, or latest
    config    settings of librdkafka, by their own names
    """

    servers: str
    topic: tuple[str, ...]
    group: str
    start: str = "earliest"
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.topic or not all(self.topic):
            raise ConfigError("kafka URL: topics are missing, as in ?topic=orders&group=payments")
        if not self.group:
            raise ConfigError("kafka URL: a group is missing, as in ?topic=orders&group=payments")
        for name in self.config:
            if name in _GUARDED:
                raise ConfigError(f"Kafka: {name} cannot be set here; {_GUARDED[name]}")

    def client(self) -> dict[str, Any]:
        session = str(self.config.get("session.timeout.ms", ""))
        return {
            "client.id": "postroom",
            # For so long a group waits for members of its past that do not join again. Polls never
            # wait for handlers here, so that it need not be the five minutes of librdkafka.
            "max.poll.interval.ms": max(_REJOIN_MS, int(session) if session.isdigit() else 0),
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            "isolation.level": "read_committed",
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
    def read(cls, url: Url, given: Mapping[str, Any]) -> KafkaSourceOptions:
        """Merge what the URL says with what was given in Python."""
        if url.scheme != "kafka" or url.driver or url.path not in ("", "/") or not url.hosts:
            raise ConfigError("kafka URL: it has the form kafka://host:9092?topic=…&group=…")
        for name in given:
            if name not in {*_OPTIONS, "config"}:
                raise ConfigError(unknown("option", name, _OPTIONS))
        dotted = {name: str for name, _ in url.query if "." in name}
        found: dict[str, Any] = url.options({**_OPTIONS, **dotted})
        for name in found.keys() & given.keys():
            raise ConfigError(f"option {name!r} is given in the URL and beside it")
        config: dict[str, Any] = {name: found.pop(name) for name in dotted}
        found |= given
        if url.user is not None:  # a password never goes over an open line unless asked to
            login = {"sasl.username": url.user, "sasl.password": url.password or ""}
            config = {
                "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **login, **config,
            }  # fmt: skip
        config |= found.pop("config", {})
        topic = found.pop("topic", ())
        servers = ",".join(
            f"{f'[{host}]' if ':' in host else host}:{port or _DEFAULT_PORT}"
            for host, port in url.hosts
        )
        topics = (topic,) if isinstance(topic, str) else tuple(topic)
        group = found.pop("group", "")
        return cls(servers=servers, topic=topics, group=group, config=config, **found)


class KafkaSource:
    """Consumes topics as a member of a group; `kafka://host:9092?topic=orders&group=payments`.

    Options are those of KafkaSourceOptions; one with a dot in its name goes to librdkafka.
    """

    def __init__(self, url: str | Url, **given: Any) -> None:
        self._url = Url.parse(url)
        self.options = KafkaSourceOptions.read(self._url, given)
        self.capabilities = SourceCapabilities(offsets=True)
        self.name = self.options.group
        self._arrivals = _Arrivals()
        self._news = asyncio.Event()
        self._thread: _Poller | None = None
        self.connection = Connection()

    @classmethod
    def from_url(cls, url: Url) -> KafkaSource:
        """Make one from `kafka://…`."""
        return cls(url)

    def __repr__(self) -> str:
        return f"KafkaSource({str(self._url)!r})"

    async def open(self) -> None:
        if self._thread is not None:
            return
        await asyncio.to_thread(self._check_topics)
        kept = await asyncio.to_thread(retention_seconds, self.options.client(), self.options.topic)
        self.capabilities = SourceCapabilities(offsets=True, redelivers_seconds=kept)
        self._arrivals = _Arrivals()
        self._news = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._thread = _Poller(self.options, loop, self._arrive, self._arrivals, self.connection)
        self._thread.start()

    async def receive(self) -> Sequence[_Delivery]:
        while not (taken := self._arrivals.take(_MOST)):
            self._news.clear()
            await self._news.wait()
        return [delivery for delivery in taken if not delivery.is_lost]

    async def pause(self) -> None:
        if self._thread is not None:
            self._thread.paused.set()

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.ending.set()
            await asyncio.to_thread(thread.join)
        self.connection.restored()  # nobody wants it any more

    async def health(self) -> None:
        """Ask the brokers for their topics; raises ConnectionError otherwise."""
        try:
            await asyncio.to_thread(self._check_topics, must_answer=True)
        except ConfigError as error:
            raise ConnectionError(str(error)) from error

    def _arrive(self, deliveries: Sequence[_Delivery]) -> None:
        self._arrivals.put(deliveries)
        self._news.set()

    def _check_topics(self, *, must_answer: bool = False) -> None:
        """Raise ConfigError for topics that are not there; a cluster that is away is no error."""
        config = {**self.options.client(), "log_level": 0}
        try:
            client = Client(config)
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigError(f"Kafka: {short_error(error)}") from None
        try:
            for topic in self.options.topic:
                found = client.list_topics(topic, timeout=_ANSWER_SECONDS).topics.get(topic)
                if found is None or found.error is not None:
                    said = "it is not there" if found is None else found.error.str()
                    raise ConfigError(f"Kafka: the topic {topic!r} cannot be consumed: {said}")
        except KafkaException as error:
            if must_answer:
                raise ConnectionError(f"Kafka does not answer: {short_error(error)}") from error
        finally:
            client.close()


class _Arrivals:
    """Messages that have arrived and were not asked for; put and taken by the event loop only."""

    def __init__(self) -> None:
        self._waiting: deque[_Delivery] = deque()
        self._bytes = 0

    @property
    def are_enough(self) -> bool:
        """No more should come, by their number or their size."""
        return len(self._waiting) >= _ENOUGH or self._bytes >= _ENOUGH_BYTES

    def put(self, deliveries: Sequence[_Delivery]) -> None:
        self._waiting.extend(deliveries)
        self._bytes += sum(len(delivery.message.body) for delivery in deliveries)

    def take(self, most: int) -> list[_Delivery]:
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        self._bytes -= sum(len(delivery.message.body) for delivery in taken)
        return taken


def retention_seconds(client: Mapping[str, Any], topics: Sequence[str]) -> float | None:
    """Return for how long the topics keep messages at most; None if it cannot be told."""
    own = ("bootstrap", "security", "sasl", "ssl", "client.id")
    admin = AdminClient({n: v for n, v in client.items() if n.startswith(own)} | {"log_level": 0})
    asked = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    longest = 0.0
    try:
        for answer in admin.describe_configs(asked, request_timeout=_ANSWER_SECONDS).values():
            kept = float(answer.result(_ANSWER_SECONDS)["retention.ms"].value)
            longest = max(longest, kept / 1_000 if kept >= 0 else float("inf"))
    except Exception:  # away, or not allowed to look
        return None
    return longest


class _Poller(threading.Thread):
    """Polls, commits and rebalances; the only one who touches the client."""

    def __init__(
        self,
        options: KafkaSourceOptions,
        loop: asyncio.AbstractEventLoop,
        arrive: Callable[[Sequence[_Delivery]], None],
        arrivals: _Arrivals,
        connection: Connection,
    ) -> None:
        super().__init__(name=f"postroom-kafka-{options.group}", daemon=True)
        self.paused = threading.Event()
        self.ending = threading.Event()
        self._options = options
        self._loop = loop
        self._arrive = arrive
        self._arrivals = arrivals
        self._connection = connection
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._held_back: bool | None = False  # None: some are paused and some are not

    def run(self) -> None:
        pause = _FIRST_PAUSE
        while not self.ending.is_set():
            try:
                self._live()
            except Exception as error:  # a fatal error of the client: only a new one helps
                _log.warning("the Kafka consumer failed (a new one is made): %s", error)
                self._connection.lost(str(error))
                self._lose(list(self._partitions))
                self.ending.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _live(self) -> None:
        config = {
            **self._options.client(),
            "on_commit": self._committed,
            "error_cb": self._failed,
        }
        client = Client(config, logger=_LogLines(self._options))
        try:
            client.subscribe(
                list(self._options.topic),
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._taken,
            )
            while not self.ending.is_set():
                self._hold_back(client)
                first = client.poll(_POLL_SECONDS)
                if first is not None:
                    self._hand_over([first, *client.consume(_MOST - 1, 0)])
                if self._connection.trouble:
                    self._look_for_brokers(client)
                self._commit(client, wait=False)
            self._commit(client, wait=True)
        finally:
            self._lose(list(self._partitions))
            with suppress(Exception):
                client.close()

    # -- the connection -----------------------------------------------------------------------
    def _failed(self, error: KafkaError) -> None:
        """Hear from librdkafka what is wrong; it says so again and again."""
        if error.code() in _UNREACHABLE and self._connection.lost(f"Kafka: {error.str()}"):
            _log.warning("Kafka cannot be reached (postroom goes on trying): %s", error.str())

    def _look_for_brokers(self, client: Client) -> None:
        """Ask whether the brokers are back: librdkafka does not tell."""
        with suppress(KafkaException):
            client.list_topics(self._options.topic[0], timeout=_LOOK_SECONDS)
            self._connection.restored()
            _log.warning("Kafka can be reached again")

    # -- messages -----------------------------------------------------------------------------
    def _hand_over(self, messages: Sequence[Message]) -> None:
        deliveries: list[_Delivery] = []
        for message in messages:
            error = message.error()
            if error is not None:
                if error.fatal():
                    raise KafkaException(error)
                _log.warning("Kafka: %s", error.str())
                continue
            partition = self._partitions.get((message.topic() or "", message.partition() or 0))
            offset = message.offset()
            if partition is not None and offset is not None:
                partition.arrived(offset)
                deliveries.append(_Delivery(partition, offset, incoming(message)))
        if deliveries:
            with suppress(RuntimeError):  # the loop is closed: nobody waits for this any more
                self._loop.call_soon_threadsafe(self._arrive, deliveries)

    def _hold_back(self, client: Client) -> None:
        """Pause what is assigned while enough is in hand; the polls go on."""
        enough = self.paused.is_set() or self._arrivals.are_enough
        if enough != self._held_back:
            assigned = client.assignment()
            (client.pause if enough else client.resume)(assigned)
            self._held_back = enough

    # -- offsets ------------------------------------------------------------------------------
    def _commit(self, client: Client, *, wait: bool) -> None:
        due = [
            TopicPartition(partition.topic, partition.number, offset)
            for partition in self._partitions.values()
            if (offset := partition.to_commit()) is not None
        ]
        if not due:
            return
        try:
            if wait:
                client.commit(offsets=due, asynchronous=False)
            else:
                client.commit(offsets=due, asynchronous=True)
        except KafkaException as error:
            self._committed(error.args[0], due)

    def _committed(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        if error is None:
            return
        level = logging.DEBUG if error.code() in _REBALANCING else logging.WARNING
        _log.log(level, "Kafka did not take an offset (it is offered again): %s", error.str())
        for each in partitions:
            found = self._partitions.get((each.topic, each.partition))
            if found is not None:
                found.not_committed()

    # -- rebalances ---------------------------------------------------------------------------
    def _assigned(self, client: Client, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._partitions[each.topic, each.partition] = Partition(each.topic, each.partition)
        self._held_back = None
        client.incremental_assign(list(partitions))

    def _revoked(self, client: Client, partitions: Sequence[TopicPartition]) -> None:
        """Commit what is done, then let go. What is running comes again and is found done."""
        self._commit(client, wait=True)
        self._lose([(each.topic, each.partition) for each in partitions])

    def _taken(self, client: Client, partitions: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        """Another one has them already: there is nothing to commit any more."""
        self._lose([(each.topic, each.partition) for each in partitions])

    def _lose(self, partitions: Sequence[tuple[str, int]]) -> None:
        for each in partitions:
            found = self._partitions.pop(each, None)
            if found is not None:
                found.lose()


class _LogLines:
    """Takes the lines of librdkafka, which repeats itself at every try: for whoever digs."""

    def __init__(self, options: KafkaSourceOptions) -> None:
        self._secrets = [v for n, v in options.config.items() if v and is_secret(n, str(v))]

    def log(self, level: int, form: str, *parts: object) -> None:
        line = form % parts if parts else form
        for secret in self._secrets:
            line = line.replace(str(secret), MASK)
        _log.log(logging.WARNING if level >= logging.CRITICAL else logging.DEBUG, "%s", line)


class _Delivery:
    __slots__ = ("_offset", "_partition", "message")

    def __init__(self, partition: Partition, offset: int, message: Incoming) -> None:
        self._partition = partition
        self._offset = offset
        self.message = message

    @property
    def is_lost(self) -> bool:
        return self._partition.is_lost

    def ack(self) -> None:
        self._partition.done(self._offset)
