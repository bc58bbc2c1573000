"""Topics that do not exist yet: the consumer waits for them, and reads the others meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from time import monotonic

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaException

from postroom.model.pauses import Pauses
from postroom.source import SourceConnection

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 3.0  # librdkafka itself looks every five minutes
_ANSWER_SECONDS = 0.5
_log = logging.getLogger("postroom.sources.kafka.source")


class MissingTopics:
    """The topics that are missing; asks for them with growing pauses. For the polling thread."""

    def __init__(
        self, connection: SourceConnection, clock: Callable[[], float] = monotonic
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._names: dict[str, None] = {}
        self._pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._look_at = 0.0

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __bool__(self) -> bool:
        return bool(self._names)

    def note(self, topics: Collection[str]) -> None:
        """These topics do not exist; logged once."""
        new = [topic for topic in topics if topic not in self._names]
        if not new:
            return
        self._names |= dict.fromkeys(new)
        self._pauses.reset()
        self._look_at = self._clock() + self._pauses.grow()
        shown = ", ".join(repr(topic) for topic in new)
        self._connection.lost(f"Kafka has no topic {shown}")
        _log.warning(
            "Kafka has no topic %s: create it. The consumer waits, and reads it as soon as it "
            "exists",
            shown,
        )

    def look(self, client: Client) -> bool:
        """Ask for the missing topics if that is due; True if one of them exists now."""
        if self._clock() < self._look_at:
            return False
        self._look_at = self._clock() + self._pauses.grow()
        found = [topic for topic in self._names if exists(client, topic, _ANSWER_SECONDS)]
        for topic in found:
            del self._names[topic]
            _log.warning("Kafka has the topic %r now; the consumer reads it", topic)
        if not self._names:
            self._connection.restored()
        return bool(found)


def exists(client: Client, topic: str, answer_seconds: float) -> bool:
    """Return whether the topic can be read; False without an answer, too."""
    try:
        found = client.list_topics(topic, timeout=answer_seconds).topics.get(topic)
    except KafkaException:
        return False
    return found is not None and found.error is None
