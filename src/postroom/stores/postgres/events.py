"""Reading, settling, staging, mending and pruning (rules R and B)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from time import monotonic

from postroom.errors import StoreError
from postroom.flawed import to_records
from postroom.record import Record, short_error
from postroom.store import Read, Settlement, Staged
from postroom.stores.postgres.database import Database, Session
from postroom.stores.postgres.floor import Floors
from postroom.stores.postgres.leasing import fence
from postroom.stores.postgres.statements import hashes, numbers

ADVANCE_STEP = 500


async def read(db: Database, floors: Floors, question: Read) -> list[Record]:
    """Choose and fetch in one statement, which is one snapshot."""
    lanes, began = question.lanes, monotonic()
    rows = await db.rows(
        "read",
        stream=question.stream,
        lanes=numbers(lanes),
        owner=question.owner,
        tokens=numbers(map(question.tokens.get, lanes)),
        floors=floors.under(question),
        epoch=floors.epoch,
        per_lane=question.per_lane,
        rows=max(question.rows, 1),
        size=question.size,
        exclude=hashes(question.exclude),
    )
    with suppress(StoreError):  # only the next reads are slower for it
        await floors.noticed(db, question, monotonic() - began)
    return to_records(rows)


async def settle(db: Database, floors: Floors, settlement: Settlement) -> set[int]:
    """Write outcomes behind the fence: in one statement where all went well, as it mostly does.

    Every change leaves what is over alone and sets what it counts, so that the same settlement
    under a new token changes nothing more (L5).
    """
    s = settlement
    plain = not (s.starts or s.failed or s.dead or s.returned or s.parked)
    if plain and not any(record.barrier is not None for record in s.done):
        ((lanes,),) = await db.rows(
            "settle",
            stream=s.stream,
            owner=s.owner,
            lanes=numbers(s.leases),
            tokens=numbers(s.leases.values()),
            seqs=numbers([record.seq for record in s.done]),
            keep=s.keep_done,
        )
        return set(lanes)
    freeing = bool(s.freed(s.leases))
    with floors.moving(s.stream, s.leases) if freeing else nullcontext():
        async with db.change() as session:
            held = await fence(session, s.stream, s.owner, s.leases)
            if held:
                await _write(session, s, held)
                freed = {record.key_hash for record in s.freed(held)}
                # Before the commit: a read after it must not pass over what has come back.
                floors.lower(s.stream, await advance(session, s.stream, freed))
            return held


async def _write(session: Session, s: Settlement, held: set[int]) -> None:
    def seqs(records: Iterable[Record]) -> list[int]:
        return [record.seq for record in records if record.lane in held]

    if starts := [record for record in s.starts if record.lane in held]:
        await session.run(
            "settle_starts",
            seqs=numbers(record.seq for record in starts),
            attempts=numbers(record.attempts for record in starts),
            owner=s.owner,
            seconds=s.lease_seconds,
        )
    if done := seqs(s.done):
        await session.run("settle_done" if s.keep_done else "settle_delete", seqs=numbers(done))
    if dead := [burial for burial in s.dead if burial.record.lane in held]:
        await session.run(
            "settle_dead",
            seqs=numbers(burial.record.seq for burial in dead),
            attempts=numbers(burial.attempts for burial in dead),
            errors=[short_error(burial.error) for burial in dead],
        )
    if failed := [failure for failure in s.failed if failure.record.lane in held]:
        numbered = numbers(failure.record.seq for failure in failed)
        await session.run(
            "settle_failed",
            seqs=numbered,
            attempts=numbers(failure.attempts for failure in failed),
            delays=[float(failure.delay) for failure in failed],
            errors=[short_error(failure.error) for failure in failed],
        )
        if any(failure.record.seq < (failure.record.barrier or 0) for failure in failed):
            await session.run("settle_behind", seqs=numbered)
        await session.run("settle_block", seqs=numbered)
    if returned := seqs(s.returned):
        await session.run("settle_returned", seqs=numbers(returned))
    if parked := seqs(s.parked):
        await session.run("settle_parked", seqs=numbers(parked))


async def advance(session: Session, stream: str, keys: Collection[bytes]) -> list[tuple[int, int]]:
    """Let keys go on whose barrier event has ended: their next followers, or all and no block.

    Nothing happens to a key while its barrier's event is still to be sent. Returns the lane of
    each key that went on, and the lowest number that came back there (0: none did). Call it
    inside a transaction that holds the lanes.
    """
    if not keys:
        return []
    rows = await session.rows("advance", stream=stream, keys=hashes(keys), step=ADVANCE_STEP)
    return [(lane, lowest or 0) for lane, lowest in rows]


async def stage(
    db: Database, floors: Floors, stream: str, lanes: Sequence[int], limit: int
) -> Staged:
    """Move what is due and say whether there is work, in one statement."""
    owners, tokens = floors.holders(stream, lanes)
    with floors.moving(stream, lanes):
        ((moved, due, ready, where, lowest),) = await db.rows(
            "stage",
            stream=stream,
            lanes=numbers(lanes),
            owners=owners,
            tokens=numbers(tokens),
            floors=floors.of(stream, lanes),
            epoch=floors.epoch,
            limit=limit,
        )
        # After the commit: their order rests on their key's block, or none is owed to them.
        if moved:
            floors.lower(stream, zip(where, lowest, strict=True))
    return Staged(int(moved), due, ready)


async def mend(
    db: Database, floors: Floors, stream: str, owner: str, leases: Mapping[int, int], limit: int
) -> int:
    """Repair blocks from state; opens a transaction only if one is broken."""
    if not await db.rows("mend", stream=stream, lanes=numbers(leases), limit=1):
        return 0
    with floors.moving(stream, leases):
        async with db.change() as session:
            held = await fence(session, stream, owner, leases)
            broken = await session.rows("mend", stream=stream, lanes=numbers(held), limit=limit)
            lowest = await advance(session, stream, [key_hash for (key_hash,) in broken])
            floors.lower(stream, lowest)
            return len(lowest)


async def prune(db: Database, older_than_seconds: float, limit: int) -> int:
    """Delete old done events."""
    async with db.change() as session:
        return await session.run("prune", seconds=older_than_seconds, limit=limit)
