"""Warns of messages without an id: identifying them by a hash of the body drops a genuine second
one (I5).
"""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)
_MOST_TOPICS = 100  # RabbitMQ may have as many routing keys as there are orders


class HashedIds:
    """Warns once per topic and consumer."""

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self._told: set[str] = set()

    def note(self, topic: str) -> bool:
        """Note a message that is identified only by its body; True if this logged a warning."""
        if topic in self._told or len(self._told) >= _MOST_TOPICS:
            return False
        self._told.add(topic)
        _log.warning(
            "consumer %s: messages of %r have no id and are identified by a hash of their body, so "
  "a second message with the same body is dropped. Have the sender set an id, name its "
  "header with id_header, or choose another missing_id",
            self._consumer, topic,
        )  # fmt: skip
        return True
