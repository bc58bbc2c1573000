"""Decides which offsets are committed now: refused ones only after a growing pause."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from confluent_kafka import KafkaError, TopicPartition

from postroom.model.pauses import Pauses
from postroom.source import SourceConnection

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_log = logging.getLogger("postroom.sources.kafka.source")
_REBALANCING = {KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS}  # it passes
_NOT_ALLOWED = {
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
_ADVICE = ". Grant its user READ on the group and the topics"

Place = tuple[str, int]


class Commits:
    """Remembers which partitions have a refused offset. For the polling thread.

    A refused offset does no harm while the consumer runs. After a restart its messages are
    delivered again, and the inbox drops them within the deduplication window.
    """

    def __init__(
        self, connection: SourceConnection, clock: Callable[[], float] = monotonic
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._refused: set[Place] = set()
        self._again_at = 0.0

    def may_be_offered(self, place: Place) -> bool:
        """Return whether an offset of this partition may be committed now."""
        return place not in self._refused or self._clock() >= self._again_at

    def answered(
        self, error: KafkaError | None, partitions: Sequence[TopicPartition]
    ) -> list[Place]:
        """Process Kafka's answers; returns the partitions whose offsets were refused.

        Kafka answers for each partition. The error is that of the whole request.
        """
        refused: list[Place] = []
        for each in partitions:
            place, why = (each.topic, each.partition), error or each.error
            if why is None:
                self._refused.discard(place)
            else:
                refused.append(place)
                self._note(why)
        if refused:
            if self._clock() >= self._again_at:  # otherwise it was already under way
                self._again_at = self._clock() + self._pauses.grow()
            self._refused |= set(refused)
        elif not self._refused:
            self._pauses.reset()
            if self._connection.accepted():
                _log.warning("Kafka accepts the offsets of this consumer again")
        return refused

    def forget(self, places: Iterable[Place]) -> None:
        """These partitions belong to another consumer now."""
        self._refused -= set(places)

    def _note(self, error: KafkaError) -> None:
        if error.code() in _REBALANCING:
            _log.debug("Kafka did not accept an offset during a rebalance: %s", error.str())
        elif self._connection.refused(f"Kafka: {error.str()}"):
            _log.warning(
                "Kafka refuses the offsets of this consumer (postroom retries with backoff): "
                "%s. Messages are still handled; after a restart they are delivered again, "
                "and the inbox drops them%s",
                error.str(),
                _ADVICE if error.code() in _NOT_ALLOWED else "",
            )
