"""Leases and members (rules L1 to L5). Lease rows are always locked in the order of their lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from postroom.record import LANES
from postroom.store import Lease, Member, Roster
from postroom.stores.postgres.database import Database, Session
from postroom.stores.postgres.statements import numbers

_FORGOTTEN_AFTER_LEASES = 10


async def beat(
    db: Database, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
) -> Roster:
    async with db.change() as session:
        await session.run("beat_member", stream=stream, seconds=lease_seconds, **member._asdict())
        long_ago = _FORGOTTEN_AFTER_LEASES * abs(lease_seconds)
        await session.run("beat_forget", stream=stream, seconds=long_ago)
        if held:
            lanes = await _lock(session, "lock_held", stream, member.owner, held)
            await session.run("beat_renew", stream=stream, lanes=lanes, seconds=lease_seconds)
        roster = await _look(session, stream)
        if len(roster.leases) < LANES:
            await session.run("beat_lanes", streams=[stream])
            roster = await _look(session, stream)
        return roster


async def take(
    db: Database, stream: str, owner: str, lanes: Sequence[int], lease_seconds: float
) -> dict[int, int]:
    async with db.change() as session:
        await session.run("beat_lanes", streams=[stream])
        rows = await session.rows("lock_free", stream=stream, lanes=numbers(lanes))
        free = numbers(lane for (lane,) in rows)
        taken = await session.rows(
            "take", stream=stream, owner=owner, lanes=free, seconds=lease_seconds
        )
        return dict(taken)


async def retake(
    db: Database, stream: str, owner: str, held: Mapping[int, int], lease_seconds: float
) -> dict[int, int]:
    async with db.change() as session:
        lanes = await _lock(session, "lock_held", stream, owner, held)
        taken = await session.rows(
            "take", stream=stream, owner=owner, lanes=lanes, seconds=lease_seconds
        )
        return dict(taken)


async def release(db: Database, stream: str, owner: str, held: Mapping[int, int]) -> None:
    async with db.change() as session:
        lanes = await _lock(session, "lock_held", stream, owner, held)
        await session.run("release", stream=stream, lanes=lanes)


async def leave(db: Database, stream: str, owner: str) -> None:
    async with db.change() as session:
        rows = await session.rows("lock_owned", stream=stream, owner=owner)
        await session.run("release", stream=stream, lanes=numbers(lane for (lane,) in rows))
        await session.run("leave_member", stream=stream, owner=owner)


async def leases(db: Database, stream: str) -> Roster:
    async with db.snapshot() as session:
        members, known = await _look(session, stream)
    there = {lease.lane: lease for lease in known}
    free = (Lease(lane, None, 0, live=False) for lane in range(LANES))
    return Roster(members, tuple(there.get(lease.lane, lease) for lease in free))


async def fence(session: Session, stream: str, owner: str, leases: Mapping[int, int]) -> set[int]:
    """Return the lanes that are still held with these tokens; until the commit nobody takes them.

    Inside a transaction it is the fence of rule L2.
    """
    rows = await session.rows(
        "fence",
        stream=stream,
        owner=owner,
        lanes=numbers(leases),
        tokens=numbers(leases.values()),
    )
    return {lane for (lane,) in rows}


async def _lock(
    session: Session, statement: str, stream: str, owner: str, held: Mapping[int, int]
) -> str:
    """Lock the lanes that are held with these tokens, so that their rows can be changed."""
    rows = await session.rows(
        statement,
        stream=stream,
        owner=owner,
        lanes=numbers(held),
        tokens=numbers(held.values()),
    )
    return numbers(lane for (lane,) in rows)


async def _look(session: Session, stream: str) -> Roster:
    members = await session.rows("leases_members", stream=stream)
    lanes = await session.rows("leases", stream=stream)
    return Roster(
        tuple(Member(owner, healthy, name) for owner, healthy, name in members),
        tuple(Lease(*row) for row in lanes),
    )
