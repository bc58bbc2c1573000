"""The limits that one relay obeys: of its stream, and of topics; without input or output.

A relay has the part of each limit that its lanes are of all lanes. An event takes a token of its
stream and one of its topic when it is admitted, at each attempt. Without a token of its stream
nothing is read. Without a token of its topic it gets a place in the topic's schedule: if its turn
comes within seconds, reads leave out its key until then; otherwise the event waits in the store,
like the events of a paused topic. Other topics go on meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from math import ceil

from postroom.engine.relay.held_back import is_held
from postroom.model.clock import Clock
from postroom.model.controls import STREAM, TOPIC, Control
from postroom.observer import LimitChanged
from postroom.record import LANES, Record

_BURST_SECONDS = 0.25  # a relay that was busy elsewhere may send the tokens of this time at once
_TICK = 0.05  # keys whose turn comes come together
_FULL_SECONDS = 0.05  # until an event in flight may have ended
_TURN_SECONDS = 1.0  # after which a worker that did not come loses its turn
_NEAR_SECONDS = 2.0  # a turn within this time is waited for in memory
_MOST_KEYS = 256  # that wait in memory
_LOOK_SECONDS = 5.0  # after which a worker without room asks again: the share may have grown
_FAR_SECONDS = 600.0  # maximum time in the store: a relay that starts later does not know of it
_NO_RATE_PER_SLOT = 20.0  # events per second that each place in flight takes, presumably
_ENOUGH = 1 - 1e-9


class Limit:
    """The relay's share of the limits of a stream or a topic."""

    def __init__(self, control: Control, now: float) -> None:
        self.control = control
        self._level, self._at = 1.0, now
        self._last = now  # the last place of the schedule
        self._soon = now  # the last place for events that have waited already

    @property
    def values(self) -> tuple[float | None, int | None]:
        return self.control.max_per_second, self.control.max_in_flight

    def tokens(self, share: float, now: float) -> int:
        """Return how many events may be sent now, without regard to those in flight."""
        if self.control.max_per_second is None:
            return LANES * LANES
        rate = self.control.max_per_second * share
        full = max(1.0, rate * _BURST_SECONDS)
        self._level = min(full, self._level + rate * max(0.0, now - self._at))
        self._at = now
        return int(self._level + 1 - _ENOUGH) if self._level >= _ENOUGH else 0

    def room(self, share: float, in_flight: int, now: float) -> int:
        """Return how many events may be sent now."""
        most = self.control.max_in_flight
        free = LANES * LANES if most is None else max(1, int(most * share)) - in_flight
        return max(0, min(free, self.tokens(share, now)))

    def take(self) -> None:
        if self.control.max_per_second is not None:
            self._level -= 1.0

    def is_unused(self, share: float, now: float) -> bool:
        """Return whether tokens are left over: nothing of its schedule takes them."""
        rate = self.control.max_per_second
        if rate is None or max(self._last, self._soon) <= now:
            return True
        self.tokens(share, now)
        return self._level >= max(1.0, rate * share * _BURST_SECONDS) - 1e-9

    def next_at(self, share: float, now: float) -> float:
        """Return when there may be room again."""
        rate = self.control.max_per_second
        if rate is None or self.tokens(share, now):
            return now + _FULL_SECONDS
        return now + min(max((1.0 - self._level) / max(rate * share, 1e-6), 0.005), _FAR_SECONDS)

    def place(self, share: float, now: float, *, soon: bool = False) -> float:
        """Return the next place in the schedule, or among those that have waited already."""
        rates = [] if self.control.max_per_second is None else [self.control.max_per_second]
        if self.control.max_in_flight is not None:
            rates.append(self.control.max_in_flight * _NO_RATE_PER_SLOT)
        each = 1.0 / max(min(rates) * share, 1e-6)
        last = self._soon if soon else self._last
        at = min(max(last + each, self.next_at(share, now)), now + _FAR_SECONDS)
        if not soon:
            self._last = at
        elif at <= now + _NEAR_SECONDS:
            self._soon = at
        return at


class Limits:
    """The limits that one relay obeys.

    waiting     keys that wait in memory → when their turn comes, and their lane
    """

    def __init__(
        self, stream: str, clock: Clock, share: Callable[[], float],
        in_flight: Callable[[], Iterable[str]],
    ) -> None:  # fmt: skip
        self._name, self._clock = stream, clock
        self._share, self._ask = share, in_flight
        self._obeys_topics = True
        self.stream: Limit | None = None
        self.topics: dict[str, Limit] = {}
        self.waiting: dict[bytes, tuple[float, int]] = {}
        self._due: dict[bytes, None] = {}  # keys whose turn has come
        self._counts = False
        self._flying: Counter[str] = Counter()  # events in flight by topic, when last counted
        self._turns: dict[int, float] = {}  # workers that found no room → when they ask again

    def ignore_topics(self) -> None:
        """The relay sends to no topic: it handles the stored messages of a consumer."""
        self._obeys_topics = False

    @property
    def active(self) -> bool:
        return self.stream is not None or bool(self.topics)

    @property
    def controls(self) -> list[Control]:
        """The limits in force."""
        every = [*([self.stream] if self.stream else []), *self.topics.values()]
        return [limit.control for limit in every]

    # -- changes ------------------------------------------------------------------------------
    def apply(self, controls: Sequence[Control]) -> tuple[list[LimitChanged], set[str]]:
        """Take over what was read from the store.

        Returns what has changed, and the topics whose waiting events are to be looked at again.
        """
        now = self._clock.monotonic()
        limited = [one for one in controls if one.limited]
        mine = [one for one in limited if (one.kind, one.name) == (STREAM, self._name)]
        topics = {one.name: one for one in limited if one.kind == TOPIC and self._obeys_topics}
        changes: list[LimitChanged] = []
        before, after = self.stream, mine[0] if mine else None
        self.stream = self._replaced(before, after, now, changes)
        freed = set[str]()
        for name in [*topics, *(name for name in self.topics if name not in topics)]:
            known, told = self.topics.get(name), len(changes)
            limit = self._replaced(known, topics.get(name), now, changes)
            if known is not None and len(changes) > told:
                freed.add(name)
            if limit is None:
                del self.topics[name]
            else:
                self.topics[name] = limit
        if changes:
            self.waiting, self._due, self._turns = {}, {}, {}
        return changes, freed

    def _replaced(
        self, limit: Limit | None, control: Control | None, now: float, changes: list[LimitChanged]
    ) -> Limit | None:
        values = (
            (None, None) if control is None else (control.max_per_second, control.max_in_flight)
        )
        if values != ((None, None) if limit is None else limit.values):
            named = control or (limit.control if limit is not None else None)
            assert named is not None
            changes.append(LimitChanged(self._name, named.kind, named.name, *values))
            return None if control is None else Limit(control, now)
        if limit is not None and control is not None:
            limit.control = control
        return limit

    # -- reading ------------------------------------------------------------------------------
    def room(self, worker: int, rows: int) -> int:
        """Return how many rows a worker may read for its stream: those that may be sent.

        Workers that found no room get it in turn, so that none is starved by its neighbours.
        """
        limit, now = self.stream, self._clock.monotonic()
        if limit is None:
            return rows
        self.count()
        room = limit.room(self._share(), self._flying.total(), now)
        turns = {one: at for one, at in self._turns.items() if now - at < _TURN_SECONDS}
        ahead = list(turns).index(worker) if worker in turns else len(turns)
        if room <= ahead:
            turns[worker] = self.again_at()
            self._turns = turns
            return 0
        turns.pop(worker, None)
        self._turns = turns
        return min(rows, room - ahead)

    def again_at(self) -> float:
        """Return when a worker that found no room is to ask again."""
        assert self.stream is not None
        now = self._clock.monotonic()
        return min(self.stream.next_at(self._share(), now), now + _LOOK_SECONDS)

    def keys_waiting(self) -> list[bytes]:
        """Return the keys that reads leave out; those whose turn has come are not among them."""
        now = self._clock.monotonic()
        for key in [key for key, (at, _) in self.waiting.items() if at <= now]:
            del self.waiting[key]
            self._due[key] = None
        while len(self._due) > 4 * _MOST_KEYS:
            del self._due[next(iter(self._due))]
        return list(self.waiting)

    def next_turn(self, lanes: Collection[int]) -> float | None:
        """Return when the next key of these lanes is to be read again."""
        return min((at for at, lane in self.waiting.values() if lane in lanes), default=None)

    # -- admitting ----------------------------------------------------------------------------
    def count(self) -> None:
        """Count the events in flight, before events are admitted."""
        every = [*([self.stream] if self.stream else []), *self.topics.values()]
        self._counts = any(limit.control.max_in_flight is not None for limit in every)
        self._flying = Counter(self._ask() if self._counts else ())

    def follow(self, record: Record) -> bool:
        """Return whether an event may be sent behind another of its key; takes its tokens.

        Otherwise it is read again when that one is over.
        """
        share, now = self._share(), self._clock.monotonic()
        stream, topic = self.stream, self.topics.get(record.topic)
        if stream is not None and not stream.room(share, self._flying.total(), now):
            return False
        if topic is not None:
            queued = not topic.is_unused(share, now)
            if queued or not topic.room(share, self._flying[record.topic], now):
                return False
        self._take(record, stream, topic)
        return True

    def admit(self, record: Record, *, alone: bool = False) -> float | None:
        """Ask to send the first event of a key; None: it may be sent, and its tokens are taken.

        0: it is not sent, and its key waits in memory. More: it waits that long in the store.
        """
        share, now = self._share(), self._clock.monotonic()
        stream, topic = self.stream, self.topics.get(record.topic)
        if stream is not None and not stream.room(share, self._flying.total(), now):
            return 0.0  # until there is room for the stream nothing is read
        if topic is None:
            self._take(record, stream, topic)
            return None
        key = record.key_hash
        returns = alone or key in self._due or is_held(record)
        free = topic.room(share, self._flying[record.topic], now) > 0
        if free and (returns or topic.is_unused(share, now)):
            self._due.pop(key, None)
            self._take(record, stream, topic)
            return None
        at = topic.place(share, now, soon=returns)
        if alone:
            at = min(at, now + _NEAR_SECONDS)
        if alone or (at - now <= _NEAR_SECONDS and len(self.waiting) < _MOST_KEYS):
            self.waiting[key] = (ceil(at / _TICK) * _TICK, record.lane)
            return 0.0
        if returns and at - now <= _NEAR_SECONDS:
            at = topic.place(share, now)
        return max(at - now, _NEAR_SECONDS)

    def _take(self, record: Record, stream: Limit | None, topic: Limit | None) -> None:
        for limit in (stream, topic):
            if limit is not None:
                limit.take()
        if self._counts:
            self._flying[record.topic] += 1
