"""The status of a stream: counts, lag, relays and lanes, and the errors of failed events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from postroom.admin.consumer_status import ConsumerSeen, consumer_of
from postroom.event import INBOX_STREAM_PREFIX
from postroom.lookup import Filter, Stats
from postroom.model.dead_letters import pattern
from postroom.record import LANES, State
from postroom.store import Membership, Store
from postroom.telemetry import conditions

_LOOKED_AT = 50  # records have their payloads with them
_SHOWN = 3


@dataclass(frozen=True)
class CauseSeen:
    """An error of failed events, with numbers and ids left out, and how many of those looked at."""

    error: str
    events: int


@dataclass(frozen=True)
class RelaySeen:
    """A relay: `healthy`, `unhealthy`, or `gone`: expired, with leases still in its name."""

    owner: str
    name: str
    state: str
    lanes: int


@dataclass(frozen=True)
class StreamSeen:
    """The status of one stream."""

    stream: str
    counts: dict[str, int]
    lag_seconds: float
    blocked_keys: int
    lanes: dict[str, int]
    relays: list[RelaySeen]
    warnings: list[str] = field(default_factory=list)
    failing: list[CauseSeen] = field(default_factory=list)
    consumer: ConsumerSeen | None = None  # of a stream of stored messages


async def look(store: Store, stream: str) -> StreamSeen:
    """Read the status of one stream from the store."""
    seen = await conditions.look(store, stream)
    warnings = [
        f"{one.text}: {one.cause}" if one.cause else one.text for one in conditions.of_stream(seen)
    ]
    found = summarise(stream, seen.stats, seen.membership)
    failing = await causes(store, stream, found.counts)
    is_consumer = stream.startswith(INBOX_STREAM_PREFIX)
    consumer = consumer_of(stream, await store.inboxes()) if is_consumer else None
    return replace(found, warnings=warnings, failing=failing, consumer=consumer)


def summarise(stream: str, stats: Stats, membership: Membership) -> StreamSeen:
    """Combine counts and leases into the status of a stream."""
    held = Counter(lease.owner for lease in membership.leases if lease.owner and lease.live)
    left = Counter(lease.owner for lease in membership.leases if lease.owner and not lease.live)
    alive = {member.owner: member for member in membership.members}
    relays = [
        RelaySeen(m.owner, m.name, "healthy" if m.healthy else "unhealthy", held[m.owner])
        for m in membership.members
    ]
    relays += [
        RelaySeen(owner, "", "gone", held[owner] + left[owner])
        for owner in sorted({*held, *left} - set(alive))
    ]
    taken = held.total()
    return StreamSeen(
        stream,
        {str(state): stats.counts.get(str(state), 0) for state in State},
        round(stats.lag_seconds, 3),
        stats.blocked_keys,
        {"total": LANES, "held": taken, "free": LANES - taken},
        relays,
    )


async def causes(store: Store, stream: str, counts: Mapping[str, int]) -> list[CauseSeen]:
    """Return the most frequent errors of the first failed events; one query if there are any."""
    if not counts.get(str(State.FAILED)):
        return []
    wanted = Filter(stream=stream, state=State.FAILED, limit=_LOOKED_AT)
    found = Counter(pattern(record.last_error) for record in await store.find(wanted))
    return [CauseSeen(error or "unknown", n) for error, n in found.most_common(_SHOWN)]
