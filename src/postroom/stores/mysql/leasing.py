"""Leases and members (rules L1 to L5).

Lease rows are always locked in the order of their lanes: they are found by their primary key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from postroom.record import LANES
from postroom.store import Lease, Member, Roster
from postroom.stores.mysql.session import Session

_FORGOTTEN_AFTER_LEASES = 10
_ALL = json.dumps(list(range(LANES)))


def microseconds(seconds: float) -> int:
    """Return a span as the statements count it."""
    return round(seconds * 1_000_000)


async def beat(
    session: Session, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
) -> Roster:
    lease = microseconds(lease_seconds)
    long_ago = _FORGOTTEN_AFTER_LEASES * abs(lease)
    async with session.change():
        if held:
            session.later(
                "beat_renew", stream=stream, owner=member.owner, lease=lease, **pairs(held)
            )
        session.later(
            "beat_member",
            stream=stream,
            owner=member.owner,
            name=member.name,
            healthy=member.healthy,
            lease=lease,
        )
        roster, silence = await _look(session, stream)
    for owner, since in silence.items():
        if since > long_ago:  # one by one and with nothing else locked: no deadlock with others
            await session.run("beat_forget", stream=stream, owner=owner, long_ago=long_ago)
    if len(roster.leases) < LANES:
        await make_lanes(session, stream)
        roster, _ = await _look(session, stream)
    return roster


async def make_lanes(session: Session, stream: str) -> None:
    """Make the lanes of a stream if they are missing; those that are there are not locked."""
    if len(await session.rows("leases", stream=stream)) < LANES:
        await session.run("beat_lanes", stream=stream, lanes=_ALL)


async def take(
    session: Session, stream: str, owner: str, lanes: Sequence[int], lease_seconds: float
) -> dict[int, int]:
    if not lanes:
        return {}
    await make_lanes(session, stream)
    return await _take(session, "take_free", stream, owner, lease_seconds, {"lanes": tuple(lanes)})


async def retake(
    session: Session, stream: str, owner: str, held: Mapping[int, int], lease_seconds: float
) -> dict[int, int]:
    if not held:
        return {}
    mine = {"owner": owner, **pairs(held)}
    return await _take(session, "retake_held", stream, owner, lease_seconds, mine)


async def _take(
    session: Session,
    which: str,
    stream: str,
    owner: str,
    lease_seconds: float,
    where: Mapping[str, Any],
) -> dict[int, int]:
    """Lock what may be taken, then take it."""
    async with session.change():
        found = dict(await session.rows(which, stream=stream, **where))
        if found:
            session.later(
                "take",
                stream=stream,
                owner=owner,
                lanes=tuple(found),
                lease=microseconds(lease_seconds),
            )
    return {lane: token + 1 for lane, token in found.items()}


async def release(session: Session, stream: str, owner: str, held: Mapping[int, int]) -> None:
    if held:
        async with session.change():
            session.later("release", stream=stream, owner=owner, **pairs(held))


async def leave(session: Session, stream: str, owner: str) -> None:
    async with session.change():
        session.later("leave", stream=stream, owner=owner)
        session.later("leave_member", stream=stream, owner=owner)


async def leases(session: Session, stream: str) -> Roster:
    (members, known), _ = await _look(session, stream)
    there = {lease.lane: lease for lease in known}
    free = (Lease(lane, None, 0, live=False) for lane in range(LANES))
    return Roster(members, tuple(there.get(lease.lane, lease) for lease in free))


async def fence(
    session: Session, stream: str, owner: str, leases: Mapping[int, int]
) -> dict[int, int]:
    """Lock the lanes that are still held with these tokens until the commit, and return them.

    The count of the rows that were written says whether it was all of them (L2).
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
    """Return lanes and tokens as the statements take them: the lanes alone lead to the rows."""
    ordered = sorted(held.items())
    return {"lanes": tuple(lane for lane, _ in ordered), "held": tuple(ordered)}


async def _look(session: Session, stream: str) -> tuple[Roster, dict[str, int]]:
    """Return who is there, and for how long each member's lease is over, in microseconds."""
    members = await session.rows("leases_members", stream=stream)
    lanes = await session.rows("leases", stream=stream)
    roster = Roster(
        tuple(
            Member(owner, bool(healthy), name) for owner, healthy, name, live, _ in members if live
        ),
        tuple(Lease(lane, owner, token, bool(live)) for lane, owner, token, live in lanes),
    )
    return roster, {owner: since for owner, _, _, _, since in members}
