"""The pauses that one relay obeys; without input or output.

A paused stream is not read. Events of a paused topic wait without an attempt, and their keys behind
them, as behind any event that failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from postroom.engine.relay.held_back import PAUSED, held_back
from postroom.model.clock import Clock
from postroom.model.controls import STREAM, TOPIC, Control
from postroom.observer import ControlChanged
from postroom.record import Record
from postroom.settlement import FailedOutcome

_SHORTEST_HOLD, _LONGEST_HOLD = 5.0, 120.0  # seconds; the end of a pause ends it sooner


class Paused:
    """The pauses that one relay obeys.

    stream      the pause of its stream, or of the consumer it belongs to
    topics      the pauses of topics, by name
    freed       topics whose pause or limit has ended, and whose events still wait
    """

    def __init__(self, stream: str, clock: Clock) -> None:
        self._stream, self._clock = stream, clock
        self._obeys = {(STREAM, stream)}
        self._obeys_topics = True
        self._since: dict[str, float] = {}
        self.stream: Control | None = None
        self.topics: dict[str, Control] = {}
        self.freed: set[str] = set()
        self._has_looked = False

    def obey(self, kind: str, name: str) -> None:
        """Obey the pauses of this consumer, too, and not those of topics: it sends to none."""
        self._obeys.add((kind, name))
        self._obeys_topics = False

    def apply(self, controls: Sequence[Control]) -> list[ControlChanged]:
        """Take over what was read from the store; returns what has changed for this relay."""
        paused = [one for one in controls if one.paused]
        mine = [one for one in paused if (one.kind, one.name) in self._obeys]
        topics = {one.name: one for one in paused if one.kind == TOPIC and self._obeys_topics}
        changes = _changes(self._stream, [self.stream] if self.stream else [], mine[:1])
        changes += _changes(self._stream, list(self.topics.values()), list(topics.values()))
        now = self._clock.monotonic()
        self._since = {name: self._since.get(name, now) for name in topics}
        self.freed = (self.freed | (self.topics.keys() - topics.keys())) - topics.keys()
        if not self._has_looked:  # events may still wait for what ended before this relay started
            free = (one for one in controls if not one.paused and not one.limited)
            self.freed |= {one.name for one in free if one.kind == TOPIC and self._obeys_topics}
        self._has_looked = True
        self.stream, self.topics = (mine[0] if mine else None), topics
        return changes

    def holds(self, record: Record) -> bool:
        """Return whether this event must not be sent now."""
        return self.stream is not None or record.topic in self.topics

    def hold(self, record: Record) -> FailedOutcome:
        """Return the outcome of an event that waits for the end of its topic's pause.

        It is looked at again ever less often, in case that no relay sees the pause end.
        """
        age = self._clock.monotonic() - self._since[record.topic]
        seconds = min(max(age / 2, _SHORTEST_HOLD), _LONGEST_HOLD)
        return held_back(record, seconds, PAUSED)


def _changes(
    stream: str, before: Sequence[Control], after: Sequence[Control]
) -> list[ControlChanged]:
    """Return the pauses that ended and those that began; a changed reason or end is neither."""
    were, are = ({(one.kind, one.name) for one in part} for part in (before, after))
    ended = [one._replace(paused=False) for one in before if (one.kind, one.name) not in are]
    began = [one for one in after if (one.kind, one.name) not in were]
    return [
        ControlChanged(
            stream, one.kind, one.name, one.paused, one.until_us if one.paused else None,
            one.reason, one.who,
        )
        for one in [*ended, *began]
    ]  # fmt: skip
