"""A consumer's requests to the cluster about its topics, made in the polling thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any

from confluent_kafka import Consumer as Client
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka import TopicCollection as Topics
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from postroom.brokers.kafka import error_codes
from postroom.record import short_error
from postroom.sources.kafka.settings import KafkaSourceSettings

_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 2.0
_SILENT_SECONDS = 3.0
_LAG_SECONDS = 3.0
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # the answer of a broker before Kafka 2.8
_NO_ANSWER = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
    error_codes.UNSUPPORTED_FEATURE,
}


class Cluster:
    """Requests with a time limit. Raises KafkaException if there is no answer."""

    def __init__(self, options: KafkaSourceSettings) -> None:
        own = ("bootstrap", "security", "sasl", "ssl", "client.id")
        config = {n: v for n, v in options.client().items() if n.startswith(own)}
        self._config = {**config, "log_level": 0}
        self._admin: AdminClient | None = None

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of topics, which differ from those of earlier topics with these names.

        Empty if the broker has none or does not return them, consistently.
        """
        return {topic: _topic_id(answer) for topic, answer in self.ask_for_ids(topics).items()}

    def ask_for_ids(self, topics: Collection[str]) -> dict[str, Future[Any]]:
        """Request the descriptions of topics, without waiting for the answers."""
        wanted = Topics(list(topics))
        return self._client().describe_topics(wanted, request_timeout=_ANSWER_SECONDS)

    def committed(
        self, client: Client, partitions: Sequence[TopicPartition]
    ) -> list[TopicPartition]:
        """Return the partitions with the group's committed offsets, negative if none."""
        found = client.committed(list(partitions), timeout=_ANSWER_SECONDS)
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        return found

    def ends(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions with the offset of the next committed message."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def _offsets(
        self, partitions: Sequence[TopicPartition], which: OffsetSpec
    ) -> list[TopicPartition]:
        if not partitions:
            return []
        asked = self._client().list_offsets(
            {TopicPartition(each.topic, each.partition): which for each in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_ANSWER_SECONDS,
        )
        return [
            TopicPartition(place.topic, place.partition, answer.result(_ANSWER_SECONDS).offset)
            for place, answer in asked.items()
        ]

    def beginnings(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions with their first offsets."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._config)
        return self._admin


def group_lag(options: KafkaSourceSettings) -> int:
    """Return how many messages of its topics a group has not committed yet; joins nothing.

    Raises ConnectionError if there is no answer, or a topic does not exist.
    """
    client, cluster = Client({**options.client(), "log_level": 0}), Cluster(options)
    try:
        places: list[TopicPartition] = []
        for topic in options.topic:
            found = client.list_topics(topic, timeout=_LAG_SECONDS).topics[topic]
            if found.error is not None:
                raise ConnectionError(f"Kafka: topic {topic!r}: {found.error.str()}")
            places += [TopicPartition(topic, number) for number in found.partitions]
        known = cluster.committed(client, places)
        fresh = [each for each in known if each.offset < 0]
        if fresh and options.start == "earliest":
            known = [*(p for p in known if p.offset >= 0), *cluster.beginnings(fresh)]
        at = {(each.topic, each.partition): each.offset for each in known if each.offset >= 0}
        ends = cluster.ends(places)
        return sum(max(0, e.offset - at.get((e.topic, e.partition), e.offset)) for e in ends)
    except KafkaException as error:
        raise ConnectionError(f"Kafka does not answer: {short_error(error)}") from error
    finally:
        client.close()


class Generations:
    """Detects a topic that is deleted and created again under a running consumer.

    Its offsets then begin at 0, and librdkafka continues at the old offset: if the new topic has
    reached it, earlier messages are skipped. The topic's id shows it. Asks occasionally, never
    waits.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._known: dict[str, str] = {}
        self._asked: dict[str, Future[Any]] = {}
        self._asked_at = self._ask_at = 0.0
        self.is_silent = False  # the last request has had no answer for a while
        self._silent_since: float | None = None

    def note(self, ids: Mapping[str, str]) -> None:
        """Remember these ids; an empty id is ignored."""
        self._known |= {topic: topic_id for topic, topic_id in ids.items() if topic_id}

    def is_another(self, topic: str, topic_id: str) -> bool:
        """Return whether this id differs from the remembered one."""
        return bool(topic_id) and self._known.get(topic, topic_id) != topic_id

    def look_soon(self) -> None:
        """Ask at the next look."""
        self._ask_at = 0.0

    @property
    def silent_seconds(self) -> float:
        """How long requests have had no answer."""
        since = self._silent_since
        return 0.0 if since is None else self._clock() - since

    def answered(self) -> None:
        """The cluster has answered another request."""
        self._asked, self.is_silent, self._silent_since = {}, False, None

    def look(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of topics that differ from the remembered ones, as far as known.

        The caller remembers them after it has started with them.
        """
        if not self._asked:
            if topics and self._clock() >= self._ask_at:
                self._asked_at = self._clock()
                self._ask_at = self._asked_at + _LOOK_SECONDS
                self._asked = self._cluster.ask_for_ids(topics)
            return {}
        if not all(answer.done() for answer in self._asked.values()):
            self._silent_since = self._silent_since or self._asked_at
            self.is_silent = self.silent_seconds > _SILENT_SECONDS
            return {}
        asked, self._asked = self._asked, {}
        self.is_silent = any(_is_unanswered(answer) for answer in asked.values())
        if not self.is_silent:
            self._silent_since = None
        found: dict[str, str] = {}
        for topic, answer in asked.items():
            try:
                topic_id = _topic_id(answer)
            except KafkaException:  # it does not exist, or Kafka is unreachable
                continue
            if self.is_another(topic, topic_id):
                found[topic] = topic_id
        return found


def _is_unanswered(answer: Future[Any]) -> bool:
    error = answer.exception()
    return isinstance(error, KafkaException) and error.args[0].code() < KafkaError.UNKNOWN


def _topic_id(answer: Future[Any]) -> str:
    try:
        topic_id = str(answer.result(_ANSWER_SECONDS).topic_id)
    except KafkaException as error:
        if error.args[0].code() not in _NO_ANSWER:
            raise
        return ""
    return "" if topic_id == _NO_ID else topic_id
