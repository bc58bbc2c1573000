"""Routes: the topic of an event is its own, then the route of its type, then the default."""

from __future__ import annotations

from collections.abc import Mapping

from postroom.errors import ConfigError
from postroom.event import DEFAULT_TOPIC, MAX_TOPIC_BYTES, Event
from postroom.model.text import check_setting


class Routes:
    """A table from event type to topic.

    `order.*` matches every type that begins with `order.`. An exact type takes precedence over a
    pattern, a longer pattern over a shorter one.
    """

    def __init__(
        self, table: Mapping[str, str] | None = None, default: str = DEFAULT_TOPIC
    ) -> None:
        self.default = _topic(default)
        self._exact: dict[str, str] = {}
        patterns: list[tuple[str, str]] = []
        for pattern, topic in (table or {}).items():
            if "*" in pattern[:-1]:
                raise ConfigError(f"route {pattern!r}: * is only supported at the end")
            if pattern.endswith("*"):
                patterns.append((pattern[:-1], _topic(topic)))
            else:
                self._exact[pattern] = _topic(topic)
        self._prefixes = sorted(patterns, key=lambda p: -len(p[0]))

    def topic_of(self, event: Event) -> str:
        """Return the topic of an event."""
        if event.topic is not None:
            return event.topic
        found = self._exact.get(event.type)
        if found is not None:
            return found
        for prefix, topic in self._prefixes:
            if event.type.startswith(prefix):
                return topic
        return self.default


def _topic(topic: str) -> str:
    check_setting("route: topic", topic, MAX_TOPIC_BYTES)
    return topic
