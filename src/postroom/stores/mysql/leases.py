"""Leases and members (rules L1 to L5).

Lease rows are always locked in the order of their lanes: they are found by their primary key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from postroom.errors import StoreError, StoreRetryableError
from postroom.model.durations import span_microseconds
from postroom.model.unreadable_rows import decode
from postroom.record import LANES
from postroom.store import Member, Membership
from postroom.stores.lock_pauses import LockPauses, until_released
from postroom.stores.membership import make_membership, with_free_lanes
from postroom.stores.mysql.session import Session

_FORGOTTEN_AFTER_LEASES = 10
_NO_DOUBT = -1  # regardless of which events were replayed, and when
_ALL = json.dumps(list(range(LANES)))


async def heartbeat(
    session: Session, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
) -> Membership:
    lease = span_microseconds(lease_seconds)
    long_ago = _FORGOTTEN_AFTER_LEASES * abs(lease)
    renewed = await _renew(session, stream, member.owner, lease_seconds, held) if held else {}
    with suppress(StoreRetryableError):  # a member's locked row must not cost it its lanes
        await session.run(
            "beat_member",
            stream=stream,
            owner=member.owner,
            name=member.name,
            healthy=member.healthy,
            lease=lease,
        )
    membership, gone = await _look(session, stream, long_ago)
    for owner in gone:  # one by one and with nothing else locked: no deadlocks
        async with session.change():
            if await session.rows("beat_gone", stream=stream, owner=owner):
                session.later("beat_forget", stream=stream, owner=owner, long_ago=long_ago)
    if len(membership.leases) < LANES:
        await make_lanes(session, stream)
        membership, _ = await _look(session, stream, long_ago)
    return membership._replace(renewed=frozenset(renewed))


async def _renew(
    session: Session,
    stream: str,
    owner: str,
    lease_seconds: float,
    held: Mapping[int, int],
    doubt_seconds: float | None = None,
) -> dict[int, int]:
    """Renew the held lanes that are not locked; retry locked ones for a tenth of a lease.

    A settle locks its lanes for some milliseconds: these soon become free. A transaction that stays
    open costs only its own lanes. Returns the lanes, with the tokens they had. With `doubt_seconds`
    each gets a new token, unless an event was replayed there since.
    """
    statement, doubt = "beat_renew", _NO_DOUBT
    if doubt_seconds is not None:
        statement, doubt = "take", span_microseconds(doubt_seconds)
    found: dict[int, int] = {}
    left = dict(held)
    pauses = LockPauses(abs(lease_seconds) / 10)
    while True:
        where = {"stream": stream, "owner": owner, **pairs(left)}
        try:
            async with session.change():
                free = dict(await session.rows("held_free", doubt=doubt, **where))
                if free:
                    session.later(
                        statement,
                        stream=stream,
                        owner=owner,
                        lanes=tuple(free),
                        lease=span_microseconds(lease_seconds),
                    )
            found |= free
            if len(found) < len(held):
                seen = dict(await session.rows("held_seen", **where))
                left = {lane: token for lane, token in seen.items() if lane not in found}
        except StoreError:
            if not found:
                raise
            return found
        if len(found) == len(held) or not left or not await pauses.next():
            return found


async def make_lanes(session: Session, stream: str) -> None:
    """Create the missing lanes of a stream; existing ones are not locked."""
    if len(await session.rows("leases", stream=stream)) < LANES:
        await session.run("beat_lanes", stream=stream, lanes=_ALL)


async def take(
    session: Session, stream: str, owner: str, lanes: Sequence[int], lease_seconds: float
) -> dict[int, int]:
    if not lanes:
        return {}
    await make_lanes(session, stream)
    async with session.change():
        found = dict(await session.rows("take_free", stream=stream, lanes=tuple(lanes)))
        if found:
            session.later(
                "take",
                stream=stream,
                owner=owner,
                lanes=tuple(found),
                lease=span_microseconds(lease_seconds),
            )
    return {lane: token + 1 for lane, token in found.items()}


async def retake(
    session: Session,
    stream: str,
    owner: str,
    held: Mapping[int, int],
    lease_seconds: float,
    doubt_seconds: float,
) -> dict[int, int]:
    if not held:
        return {}
    found = await _renew(session, stream, owner, lease_seconds, held, doubt_seconds)
    return {lane: token + 1 for lane, token in found.items()}


async def release(session: Session, stream: str, owner: str, held: Mapping[int, int]) -> set[int]:
    """Release lanes that are not locked, and return them; the others expire."""
    lanes: tuple[int, ...] = ()
    if held:
        async with session.change():
            where = pairs(held)
            free = await session.rows(
                "held_free", stream=stream, owner=owner, doubt=_NO_DOUBT, **where
            )
            if free:
                lanes = tuple(lane for lane, _ in free)
                session.later("release", stream=stream, owner=owner, lanes=lanes)
    return set(lanes)


async def leave(session: Session, stream: str, owner: str) -> None:
    async def release_mine() -> set[int]:
        membership, _ = await _look(session, stream)
        mine = {lease.lane: lease.token for lease in membership.leases if lease.owner == owner}
        return set(mine) - await release(session, stream, owner, mine)

    await release_mine()
    await session.run("leave_member", stream=stream, owner=owner)  # whatever is locked
    await until_released(release_mine)


async def leases(session: Session, stream: str) -> Membership:
    membership, _ = await _look(session, stream)
    return with_free_lanes(membership)


async def fence(
    session: Session, stream: str, owner: str, leases: Mapping[int, int]
) -> dict[int, int]:
    """Lock the lanes that are still held with these tokens until the commit, and return them.

    The number of written rows shows whether it was all of them (L2).
    """
    held = dict(leases)
    while held:
        where = {"stream": stream, "owner": owner, **pairs(held)}
        if await session.run("settle_fence", **where) == len(held):
            break
        left = {lane for (lane,) in await session.rows("settle_held", **where)}
        held = {lane: token for lane, token in held.items() if lane in left}
    return held


def pairs(held: Mapping[int, int]) -> dict[str, Any]:
    """Return lanes and tokens as statement parameters: the lanes alone select the rows."""
    ordered = sorted(held.items())
    return {"lanes": tuple(lane for lane, _ in ordered), "held": tuple(ordered)}


async def _look(session: Session, stream: str, long_ago: int = 0) -> tuple[Membership, list[bytes]]:
    """Return the membership, and the members to delete."""
    members = await session.rows("leases_members", stream=stream)
    lanes = await session.rows("leases", stream=stream)
    membership = make_membership(
        (
            (decode(owner), healthy, decode(name))
            for owner, healthy, name, live, *_ in members
            if live
        ),
        ((lane, owner and decode(owner), *rest) for lane, owner, *rest in lanes),
    )
    gone = [
        owner
        for owner, _, _, _, since, length in members
        if since > long_ago or -since > _FORGOTTEN_AFTER_LEASES * length
    ]
    return membership, gone
