"""Decides which conditions turn a lamp yellow or red: for all lamps, in this one place.

The lamps are `postroom status`, `postroom health`, `/readyz`, the metrics with their alert rules,
and the log. A yellow condition is a warning: a restart would not help. A red one is a problem of
this process. docs/operations/lamps.md has the table; a test compares it with real conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from postroom.engine.consumer import Consumer
from postroom.engine.handler_sets import handlers_of
from postroom.engine.relay.held_back import is_held
from postroom.engine.relay.relay import Relay
from postroom.lookup import Filter, Stats
from postroom.model.clock import host_microseconds
from postroom.operation import Operation, OperationState
from postroom.record import State
from postroom.store import Member, Membership, Store

LAG_SECONDS = 60.0
_LEASES = 2  # after this many lease times without a heartbeat, a relay has lost its lanes
_UNFINISHED = (State.PENDING, State.PROCESSING, State.FAILED)
_NAMED = 4  # relays in a text
_LOOKED_AT = 10  # failed events: the first ones may be held back by a pause


class Condition(NamedTuple):
    """A condition of a stream, a relay, a consumer or an operation.

    cause    an error of an event, which may name hosts and users: for operators, not for a port
    """

    text: str
    is_red: bool = False
    cause: str = ""


class Seen(NamedTuple):
    """The state of one stream, as the store has it.

    stats    with a lag that includes events that wait for a retry or a correction
    cause    the error of the oldest of these; empty if none waits
    held     some of the first failed events did not fail: their topic is paused or at its limit
    """

    stream: str
    stats: Stats
    membership: Membership
    cause: str = ""
    held: bool = False


async def look(store: Store, stream: str) -> Seen:
    """Read the state of a stream."""
    stats, membership = await store.stats(stream), await store.leases(stream)
    if not stats.counts.get(str(State.FAILED), 0):
        return Seen(stream, stats, membership)
    wanted = Filter(stream=stream, state=State.FAILED, limit=_LOOKED_AT)
    found = await store.find(wanted)
    oldest = next((one for one in found if not is_held(one)), None)
    if oldest is None:
        return Seen(stream, stats, membership)
    held = any(map(is_held, found))
    details = await store.details(oldest.id)
    due_us = max(oldest.created_us, (details and details.available_us) or 0)
    lag = max(stats.lag_seconds, (host_microseconds() - due_us) / 1_000_000)
    cause = oldest.last_error or "unknown"
    return Seen(stream, stats._replace(lag_seconds=lag), membership, cause, held)


def of_stream(seen: Seen) -> list[Condition]:
    """Return the conditions of a stream that its store shows."""
    stream, stats, (members, leases, *_) = seen.stream, seen.stats, seen.membership
    found: list[Condition] = []
    if stats.lag_seconds > LAG_SECONDS:
        found.append(Condition(f"stream {stream} lags by {stats.lag_seconds:,.0f} s"))
    if seen.cause:
        failed, keys = stats.counts.get(str(State.FAILED), 0), stats.blocked_keys
        waiting = f"{failed:,} {'event waits' if failed == 1 else 'events wait'} for a retry"
        waiting += ", some of them only for a topic that is paused or limited" if seen.held else ""
        blocked = f", {keys:,} {'key is' if keys == 1 else 'keys are'} blocked" if keys else ""
        found.append(Condition(f"stream {stream}: {waiting}{blocked}", cause=seen.cause))
    if dead := stats.counts.get(str(State.DEAD), 0):
        noun = "dead letter" if dead == 1 else "dead letters"
        found.append(Condition(f"stream {stream} has {dead:,} {noun}"))
    found += [
        Condition(
            f"relay {member.name or member.owner} of stream {stream} is unhealthy: its destination "
            "or its source is unreachable, its work is stuck, or it is stopping"
        )
        for member in members
        if not member.healthy
    ]
    if conflict := _conflict(stream, members):
        found.append(conflict)
    alive = {member.owner for member in members}
    if not members and any(stats.counts.get(str(state), 0) for state in _UNFINISHED):
        found.append(Condition(f"no relay serves stream {stream}"))
    if orphans := sum(lease.live and lease.owner not in alive for lease in leases):
        lanes = "lane is" if orphans == 1 else "lanes are"
        found.append(
            Condition(
                f"stream {stream}: {orphans} {lanes} held by a relay that is no longer running"
            )
        )
    return found


def of_operations(found: Iterable[Operation]) -> list[Condition]:
    """Return the conditions of the unfinished operations of a store."""
    return [
        Condition(f"operation {one.id} stopped; see: postroom operations")
        for one in found
        if one.state == OperationState.STOPPED
    ]


def handler_sets(members: Sequence[Member]) -> int:
    """Return how many different sets of handlers the live members of a stream run."""
    return len({handlers_of(member).functions for member in members} - {""})


def _conflict(stream: str, members: Sequence[Member]) -> Condition | None:
    number = handler_sets(members)
    if number < 2:
        return None
    names = sorted({one.name or one.owner for one in members if handlers_of(one).functions})
    shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    return Condition(
        f"{number} different sets of handlers serve stream {stream} (relays {shown}): a new "
        "version is being deployed, or two services use one name"
    )


def of_relay(relay: Relay) -> list[Condition]:
    """Return the conditions of a relay of this process."""
    stream, vitals = relay.settings.stream, relay.vitals
    if vitals is None or not relay.is_running:
        return [Condition(f"the relay of stream {stream} {_why_not(relay)}", is_red=True)]
    found: list[Condition] = []
    if is_silent(relay):
        # The driver's error names hosts and users: it goes to the log, not to a port.
        found.append(
            Condition(
                f"the store does not answer the relay of {stream}, or refuses its writes; see the "
                "log",
                is_red=True,
            )
        )
    if vitals.breaker != "closed":
        found.append(Condition(f"the destination of stream {stream} is unreachable"))
    return found


def is_silent(relay: Relay) -> bool:
    """Return whether a running relay has had no heartbeat for two leases."""
    vitals = relay.vitals
    return vitals is not None and vitals.silent_seconds > _LEASES * relay.settings.lease_seconds


def of_consumer(consumer: Consumer) -> list[Condition]:
    """Return the conditions of a consumer of this process."""
    name = consumer.name
    if not consumer.is_running:
        return [Condition(f"the consumer {name} {_why_not(consumer)}", is_red=True)]
    found: list[Condition] = []
    if consumer.connection.trouble:
        found.append(
            Condition(
                f"the consumer {name} cannot receive: its broker is unreachable, or its topic or "
                "queue is missing; see the log"
            )
        )
    if consumer.connection.refusal:
        found.append(
            Condition(f"the broker refuses acknowledgements of the consumer {name}; see the log")
        )
    return found


def _why_not(service: Relay | Consumer) -> str:
    """Say why a relay or consumer does not run; the error itself is in the log."""
    broken = service.error is not None
    return "crashed; see the log" if broken else "is not running; check its store"
