"""One sample of a store: the state of its streams and consumers, as all viewers see it.

Every statement here is answered by an index or bounded in rows. The number of statements depends on
the number of streams, never on the number of events.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from postroom.commands import AuditEntry
from postroom.engine.relay.held_back import is_held
from postroom.event import INBOX_STREAM_PREFIX
from postroom.lookup import Filter, InboxStats
from postroom.model.clock import host_microseconds
from postroom.model.controls import CONSUMER, STREAM, TOPIC, Control
from postroom.model.dead_letters import Group, group
from postroom.operation import Operation
from postroom.record import LANES, Record, Stage, State
from postroom.search import Outline
from postroom.store import Membership, Store
from postroom.telemetry import conditions

TAIL = 300
FAILED = 50  # records have their payloads with them
FOLLOWERS = 500
_HEADS = 5  # of each stream: their followers are counted
_AUDIT = 8
_CAUSES = 1_000
_LONGEST_TAIL_SECONDS = 60.0
_SECOND = 1_000_000
_UNFINISHED = (State.PENDING, State.PROCESSING, State.FAILED)


class Head(NamedTuple):
    """A failed event that blocks its key.

    followers   the events that wait behind it, among the newest FOLLOWERS of its key
    """

    stream: str
    key: str
    id: str
    type: str
    error: str
    attempts: int
    created_us: int
    next_attempt_us: int | None
    followers: int


class RelayNow(NamedTuple):
    """A relay that serves a stream: `state` is healthy, unhealthy or gone."""

    owner: str
    name: str
    state: str
    lanes: int


class StreamNow(NamedTuple):
    """The state of a stream.

    consumer        the consumer whose stored messages these are; None: an outbox
    lag_seconds     the age of the oldest event that is due, or waits for a retry
    lanes           the place of each lane's relay in `relays`; None: without an owner
    added, confirmed    events per second; None: unknown
    p50, p99        seconds from commit to confirm, of the last events; None: none is known
    empty_seconds   the estimated time until nothing waits; None: unknown, or it grows
    """

    name: str
    consumer: str | None
    counts: Mapping[str, int]
    lag_seconds: float
    blocked_keys: int
    relays: tuple[RelayNow, ...]
    lanes: tuple[int | None, ...]
    conditions: tuple[conditions.Condition, ...]
    heads: tuple[Head, ...]
    pause: Control | None
    limits: Control | None
    added: float | None = None
    confirmed: float | None = None
    p50: float | None = None
    p99: float | None = None
    empty_seconds: float | None = None

    @property
    def waiting(self) -> int:
        return sum(self.counts.get(str(state), 0) for state in _UNFINISHED)

    @property
    def dead(self) -> int:
        return self.counts.get(str(State.DEAD), 0)

    @property
    def health(self) -> str:
        """The destination's health, as the relays report it."""
        alive = [relay for relay in self.relays if relay.state != "gone"]
        if not alive:
            return "no relay"
        return "unhealthy" if any(relay.state == "unhealthy" for relay in alive) else "healthy"


class Sample(NamedTuple):
    """The state of a store. `at` is wall time in seconds, `took` in seconds."""

    at: float
    took: float
    streams: tuple[StreamNow, ...]
    inboxes: tuple[InboxStats, ...]
    controls: tuple[Control, ...]
    operations: tuple[Operation, ...]
    audit: tuple[AuditEntry, ...]
    tail: tuple[Outline, ...]

    def stream(self, name: str) -> StreamNow | None:
        return next((one for one in self.streams if one.name == name), None)

    @property
    def topic_controls(self) -> list[Control]:
        return [one for one in self.controls if one.kind == TOPIC and (one.paused or one.limited)]


async def take(store: Store, before: Sample | None) -> Sample:
    """Sample a store; rates compare with the sample before."""
    began = time.monotonic()
    controls = await store.controls()
    tail = await store.search.newest(TAIL)
    streams = []
    for name in await store.streams():
        now = await _look(store, name, controls)
        streams.append(_with_rates(now, tail, before, time.time()))
    return Sample(
        time.time(),
        time.monotonic() - began,
        tuple(streams),
        tuple(await store.inboxes()),
        tuple(controls),
        tuple(await store.operations(unfinished=True)),
        tuple(await store.audit_log(_AUDIT)),
        tuple(tail),
    )


async def take_groups(store: Store) -> list[Group]:
    """Return the groups of dead letters by cause, most frequent first."""
    return group(await store.dead_causes(None, _CAUSES))


async def _look(store: Store, name: str, controls: Iterable[Control]) -> StreamNow:
    seen = await conditions.look(store, name)
    consumer = (
        name.removeprefix(INBOX_STREAM_PREFIX) if name.startswith(INBOX_STREAM_PREFIX) else None
    )
    named = [(STREAM, name)] if consumer is None else [(STREAM, name), (CONSUMER, consumer)]
    own = [one for one in controls if (one.kind, one.name) in named]
    failed = seen.stats.counts.get(str(State.FAILED), 0)
    records = []
    if failed:
        wanted = Filter(stream=name, state=State.FAILED, limit=FAILED)
        records = [one for one in await store.find(wanted) if not is_held(one)]
    relays, lanes = relays_of(seen.membership)
    return StreamNow(
        name,
        consumer,
        dict(seen.stats.counts),
        seen.stats.lag_seconds,
        seen.stats.blocked_keys,
        relays,
        lanes,
        tuple(conditions.of_stream(seen)),
        tuple([await _head(store, one) for one in _oldest(records)]),
        next((one for one in own if one.paused), None),
        next((one for one in own if one.limited), None),
    )


def _oldest(records: Sequence[Record]) -> list[Record]:
    """Return the heads that have waited longest, one for each key."""
    heads: dict[bytes, Record] = {}
    for record in records:
        if record.key is not None:
            heads.setdefault(record.key_hash, record)
    return sorted(heads.values(), key=lambda one: one.created_us)[:_HEADS]


async def _head(store: Store, record: Record) -> Head:
    assert record.key is not None
    unit = (record.stream, record.aggregate_type)
    followers = sum(
        one.seq > record.seq
        and one.stage != Stage.OVER
        and (one.stream, one.aggregate_type) == unit
        for one in await store.search.outline("key", record.key, FOLLOWERS)
    )
    error = record.last_error or "unknown"
    return Head(
        record.stream, record.key, record.id, record.type, error, record.attempts,
        record.created_us, record.next_attempt_us, followers,
    )  # fmt: skip


def relays_of(membership: Membership) -> tuple[tuple[RelayNow, ...], tuple[int | None, ...]]:
    """Return the relays of a stream, and for each lane the place of its relay."""
    held = Counter(one.owner for one in membership.leases if one.owner and one.live)
    relays = [
        RelayNow(m.owner, m.name, "healthy" if m.healthy else "unhealthy", held[m.owner])
        for m in sorted(membership.members, key=lambda m: (m.name, m.owner))
    ]
    alive = {one.owner for one in relays}
    relays += [RelayNow(o, "", "gone", held[o]) for o in sorted({*held} - alive)]
    places = {one.owner: place for place, one in enumerate(relays)}
    owners = {one.lane: one.owner for one in membership.leases if one.owner and one.live}
    return tuple(relays), tuple(places.get(owners.get(lane, "")) for lane in range(LANES))


def _with_rates(
    now: StreamNow, tail: Sequence[Outline], before: Sample | None, at: float
) -> StreamNow:
    """Add rates and delays from the last events, and from the sample before."""
    now_us = host_microseconds()
    span = _LONGEST_TAIL_SECONDS
    if len(tail) == TAIL:  # else the whole outbox is in it
        span = min(span, max(0.5, (now_us - tail[-1].created_us) / _SECOND))
    ours = [one for one in tail if one.stream == now.name]
    recent = [one for one in ours if (now_us - one.created_us) / _SECOND <= span]
    added = len(recent) / span
    settled = [
        one for one in ours if one.settled_us and (now_us - one.settled_us) / _SECOND <= span
    ]
    confirmed = len(settled) / span
    old = before.stream(now.name) if before is not None else None
    if old is not None and before is not None and 0.5 <= at - before.at <= _LONGEST_TAIL_SECONDS:
        ended = old.waiting - now.waiting - max(0, now.dead - old.dead)
        confirmed = max(0.0, added + ended / (at - before.at))
    delays = sorted(
        (one.settled_us - one.created_us) / _SECOND
        for one in ours
        if one.settled_us and one.state == State.DONE
    )
    gain = confirmed - added
    return now._replace(
        added=added,
        confirmed=confirmed,
        p50=_quantile(delays, 0.5),
        p99=_quantile(delays, 0.99),
        empty_seconds=now.waiting / gain if now.waiting and gain > 0.01 else None,
    )


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    if not ordered:
        return None
    return max(0.0, ordered[min(len(ordered) - 1, int(share * len(ordered)))])
