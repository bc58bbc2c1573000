"""Partitions of a group without offsets, with start=latest: paused until their start is committed.

Otherwise a member that dies before its first commit leaves no trace, and the next one starts at the
end again: behind the messages that the first had in flight. A commit that waits has no time limit
in librdkafka, so this one does not wait: polling goes on, and with it the membership and the stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from postroom.model.pauses import Pauses

_log = logging.getLogger("postroom.sources.kafka.source")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_ANSWER_SECONDS = 10.0  # without an answer: logged. librdkafka keeps the request

Place = tuple[str, int]


class Starts:
    """Commits the starts, again after growing pauses if Kafka refuses. For the polling thread."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._waiting: dict[Place, int] = {}
        self._pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._due_at = 0.0
        self._asked_at: float | None = None  # of the request that is not answered yet
        self._asked: set[Place] = set()
        self._is_told = False

    def __contains__(self, place: Place) -> bool:
        return place in self._waiting

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions wait until their offsets are committed."""
        self._waiting |= {(each.topic, each.partition): each.offset for each in partitions}
        self._due_at = self._clock()

    def start_of(self, place: Place) -> TopicPartition:
        return TopicPartition(*place, self._waiting[place])

    def commit(self, client: Client) -> bool:
        """Offer the starts if they are due; True if a request was sent."""
        now = self._clock()
        if not self._waiting:
            return False
        if self._asked_at is not None:
            if now - self._asked_at >= _ANSWER_SECONDS:
                self._tell("Kafka does not answer")
            return False
        if now < self._due_at:
            return False
        starts = [self.start_of(place) for place in self._waiting]
        try:
            client.commit(offsets=starts, asynchronous=True)
        except KafkaException as error:
            self._failed(error.args[0])
            return False
        self._asked_at, self._asked = now, set(self._waiting)
        return True

    def answered(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> bool:
        """Process an answer; returns whether partitions may be read now."""
        if self._asked & {(each.topic, each.partition) for each in partitions}:
            self._asked_at, self._asked = None, set()
        ours = [each for each in partitions if (each.topic, each.partition) in self._waiting]
        if not ours:
            return False
        ready = [each for each in ours if (error or each.error) is None]
        for each in ready:
            del self._waiting[each.topic, each.partition]
        for each in ours:
            if why := error or each.error:
                self._failed(why)
                break
        if not self._waiting:
            self._pauses.reset()
            if self._is_told:
                _log.warning("the start of the new group is committed; its partitions are read")
            self._is_told = False
        return bool(ready)

    def forget(self, places: Iterable[Place]) -> None:
        """These partitions belong to another consumer now, or to another client of this one."""
        for place in places:
            self._waiting.pop(place, None)
        if not self._waiting:
            self._asked_at = None
            self._asked.clear()

    def _failed(self, error: KafkaError) -> None:
        self._due_at = self._clock() + self._pauses.grow()
        self._tell(error.str())

    def _tell(self, why: str) -> None:
        if not self._is_told:
            self._is_told = True
            places = ", ".join(f"{topic}/{number}" for topic, number in sorted(self._waiting)[:10])
            _log.warning(
                "the start of a new group cannot be committed, and nothing of %s is read until it "
                "is (postroom retries with backoff): %s",
                places,
                why,
            )
