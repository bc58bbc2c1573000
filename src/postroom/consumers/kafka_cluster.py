"""What a consumer asks the cluster about its topics, in the thread that polls."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from confluent_kafka import Consumer as Client
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka import TopicCollection as Topics
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from postroom.consumers.kafka_options import KafkaSourceOptions

_ANSWER_SECONDS = 10.0
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # what a broker before Kafka 2.8 answers
_NO_ANSWER = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE,
}


class Cluster:
    """Asks; each question has a time limit. Raises KafkaException if there is no answer."""

    def __init__(self, options: KafkaSourceOptions) -> None:
        own = ("bootstrap", "security", "sasl", "ssl", "client.id")
        config = {n: v for n, v in options.client().items() if n.startswith(own)}
        self._config = {**config, "log_level": 0}
        self._admin: AdminClient | None = None

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of topics, which differ from those of earlier topics of these names.

        Empty where the broker has none or does not tell; that is the same at every question.
        """
        wanted = Topics(list(topics))
        asked = self._client().describe_topics(wanted, request_timeout=_ANSWER_SECONDS)
        found: dict[str, str] = {}
        for topic, answer in asked.items():
            try:
                topic_id = str(answer.result(_ANSWER_SECONDS).topic_id)
            except KafkaException as error:
                if error.args[0].code() not in _NO_ANSWER:
                    raise
                topic_id = ""
            found[topic] = "" if topic_id == _NO_ID else topic_id
        return found

    def committed(
        self, client: Client, partitions: Sequence[TopicPartition]
    ) -> list[TopicPartition]:
        """Return the partitions with the offsets that the group has committed, negative if none."""
        found = client.committed(list(partitions), timeout=_ANSWER_SECONDS)
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        return found

    def ends(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions with the offsets at which the next committed message will be."""
        if not partitions:
            return []
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = self._client().list_offsets(
            {TopicPartition(each.topic, each.partition): latest for each in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_ANSWER_SECONDS,
        )
        return [
            TopicPartition(place.topic, place.partition, answer.result(_ANSWER_SECONDS).offset)
            for place, answer in asked.items()
        ]

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._config)
        return self._admin
