"""Leases and members (rules L1 to L5). Lease rows are always locked in the order of their lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from postroom.errors import StoreError
from postroom.record import LANES
from postroom.store import Lease, Member, Membership
from postroom.stores.lock_pauses import LockPauses, until_released
from postroom.stores.membership import make_membership, with_free_lanes
from postroom.stores.postgres.database import Database, Session
from postroom.stores.postgres.statements import numbers

_FORGOTTEN_AFTER_LEASES = 10


async def heartbeat(
    db: Database, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
) -> Membership:
    """Heartbeat, renew, read the membership: single statements that never wait for a locked row."""
    renewed = await _renew(db, stream, member.owner, held, lease_seconds) if held else {}
    await db.run("beat_member", stream=stream, seconds=lease_seconds, **member._asdict())
    long_ago = _FORGOTTEN_AFTER_LEASES * abs(lease_seconds)
    await db.run("beat_forget", stream=stream, seconds=long_ago)
    membership = await _look(db, stream)
    if len(membership.leases) < LANES:
        await db.run("beat_lanes", streams=[stream])
        membership = await _look(db, stream)
    return membership._replace(renewed=frozenset(renewed))


async def _renew(
    db: Database,
    stream: str,
    owner: str,
    held: Mapping[int, int],
    lease_seconds: float,
    doubt_seconds: float | None = None,
) -> dict[int, int]:
    """Renew the held lanes that are not locked; retry locked ones for a tenth of a lease.

    A settle locks its lanes for some milliseconds: these soon become free. A transaction that stays
    open costs only its own lanes. Returns the renewed lanes. With `doubt_seconds` each gets a new
    token, unless an event was replayed there since.
    """
    renewed: dict[int, int] = {}
    left = dict(held)
    pauses = LockPauses(abs(lease_seconds) / 10)
    while True:
        try:
            rows = await db.rows(
                "renew",
                stream=stream,
                owner=owner,
                lanes=numbers(left),
                tokens=numbers(left.values()),
                seconds=lease_seconds,
                step=0 if doubt_seconds is None else 1,
                doubt=doubt_seconds or 0.0,
            )
            renewed |= dict(rows)
            if len(renewed) < len(held):
                leases = (Lease(*row) for row in await db.rows("leases", stream=stream))
                ours = {f.lane: f.token for f in leases if f.owner == owner}
                left = {n: t for n, t in held.items() if n not in renewed and ours.get(n) == t}
        except StoreError:
            if not renewed:
                raise
            return renewed
        if len(renewed) == len(held) or not left or not await pauses.next():
            return renewed


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
    db: Database,
    stream: str,
    owner: str,
    held: Mapping[int, int],
    lease_seconds: float,
    doubt_seconds: float,
) -> dict[int, int]:
    if not held:
        return {}
    return await _renew(db, stream, owner, held, lease_seconds, doubt_seconds)


async def release(db: Database, stream: str, owner: str, held: Mapping[int, int]) -> None:
    async with db.change() as session:
        lanes = await _lock(session, "lock_held", stream, owner, held)
        await session.run("release", stream=stream, lanes=lanes)


async def leave(db: Database, stream: str, owner: str) -> None:
    async def release_mine() -> set[int]:
        async with db.change() as session:
            rows = await session.rows("lock_owned", stream=stream, owner=owner)
            await session.run("release", stream=stream, lanes=numbers(lane for (lane,) in rows))
        leases = (Lease(*row) for row in await db.rows("leases", stream=stream))
        return {lease.lane for lease in leases if lease.owner == owner}

    await release_mine()
    await db.run("leave_member", stream=stream, owner=owner)  # whatever is locked
    await until_released(release_mine)


async def leases(db: Database, stream: str) -> Membership:
    async with db.snapshot() as session:
        membership = await _look(session, stream)
    return with_free_lanes(membership)


async def fence(session: Session, stream: str, owner: str, leases: Mapping[int, int]) -> set[int]:
    """Return the lanes that are still held with these tokens; they cannot be taken until the
    commit.

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


async def _look(session: Session | Database, stream: str) -> Membership:
    members = await session.rows("leases_members", stream=stream)
    lanes = await session.rows("leases", stream=stream)
    return make_membership(members, lanes)
