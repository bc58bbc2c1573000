"""Writes outcomes behind the fence (rules L2, L5, B1, B3, H1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from postroom.errors import StoreError
from postroom.record import Record
from postroom.settlement import Settlement, new_history
from postroom.stores.postgres.blocks import advance
from postroom.stores.postgres.database import Database, Session
from postroom.stores.postgres.floors import Floors
from postroom.stores.postgres.leases import fence
from postroom.stores.postgres.statements import hashes, numbers, receipt_texts, texts
from postroom.transaction import Proof, by_place


async def settle(db: Database, floors: Floors, settlement: Settlement) -> set[int]:
    """Write outcomes behind the fence: in one statement if all succeeded, which is the common case.

    Every change leaves finished events alone and sets absolute counts, so that repeating the
    settlement under a new token changes nothing more (L5). A row is identified by its number and
    its id, since a number may be assigned again after a failover.
    """
    s = settlement
    s.missing, s.lost, s.kept = [], [], []
    plain = not (s.claims or s.starts or s.failed or s.dead or s.returned or s.parked or s.expired)
    if plain and not any(record.barrier is not None for record in s.done):
        names = sorted([(record.seq, record.id) for record in s.done])
        seqs = [seq for seq, _ in names]
        if len(set(seqs)) == len(seqs):  # otherwise a number was assigned twice, and both are here
            return await _settle_done(db, s, seqs, [name for _, name in names])
    freeing = bool(s.freed(s.leases))
    with floors.moving(s.stream, s.leases) if freeing else nullcontext():
        async with db.change() as session:
            held = await fence(session, s.stream, s.owner, s.leases)
            if s.claims and held:
                held = s.weigh(held, await holds(session, s.proofs()))
            if held:
                changed, deleted = await _write(session, s, held)
                if changed < sum(record.lane in held for record in s.named()):
                    seqs = [record.seq for record in s.named()]
                    there = await session.rows("settle_missing", seqs=numbers(seqs))
                    s.missing = s.find_missing(held, [*there, *deleted])
                freed = {record.key_hash for record in s.freed(held)}
                # Before the commit: a read after it must not skip events that have come back.
                floors.lower(s.stream, await advance(session, s.stream, freed))
            return held


async def holds(session: Session | Database, proofs: Sequence[Proof]) -> set[int]:
    """Return the indexes of the proofs that exist."""
    acceptances, counters = by_place(proofs)
    there = set[int]()
    if acceptances:
        rows = await session.rows(
            "holds_acceptances",
            places=numbers(acceptances),
            consumers=texts(acceptance.consumer for acceptance in acceptances.values()),
            ids=texts(acceptance.id for acceptance in acceptances.values()),
        )
        there |= {place for (place,) in rows}
    if counters:
        rows = await session.rows(
            "holds_counters",
            places=numbers(counters),
            topics=texts(counter.topic for counter in counters.values()),
            keys=hashes([counter.key_hash for counter in counters.values()]),
            lasts=numbers(counter.step for counter in counters.values()),
        )
        there |= {place for (place,) in rows}
    return there


async def _settle_done(db: Database, s: Settlement, seqs: list[int], ids: list[str]) -> set[int]:
    """Settle done events with one statement; the numbers are sorted and unique."""
    ((lanes, unchanged),) = await db.rows(
        "settle",
        stream=s.stream,
        owner=s.owner,
        lanes=numbers(s.leases),
        tokens=numbers(s.leases.values()),
        seqs=numbers(seqs),
        ids=texts(ids),
        receipts=_receipts(s, ids),
        keep=s.keep_done,
    )
    held = set(lanes)
    if unchanged and held:
        left = set(unchanged)
        ended = [(record.seq, record.id) for record in s.done if record.seq not in left]
        with suppress(StoreError):  # the settle itself is committed
            there = await db.rows("settle_missing", seqs=numbers(unchanged))
            s.missing = s.find_missing(held, [*there, *ended])
    return held


def _receipts(s: Settlement, ids: Sequence[str]) -> str:
    if not s.receipts or not s.keep_done:
        return "{}"
    return receipt_texts(list(map(s.receipts.get, ids)))


async def _write(
    session: Session, s: Settlement, held: set[int]
) -> tuple[int, list[tuple[int, str]]]:
    """Write every kind of outcome.

    Returns how many events were changed, without parked ones, and which were deleted.
    """
    changed = 0
    deleted: list[tuple[int, str]] = []

    def name(records: Iterable[Record]) -> dict[str, str]:
        found = list(records)
        seqs, ids = numbers(r.seq for r in found), texts(r.id for r in found)
        return {"stream": s.stream, "lanes": numbers(held), "seqs": seqs, "ids": ids}

    async def change(statement: str, records: Iterable[Record], **more: Any) -> int:
        return await session.run(statement, **name(records), **more)

    def mine(records: Iterable[Record]) -> list[Record]:
        return [record for record in records if record.lane in held]

    if starts := mine(s.starts):
        attempts = numbers(record.attempts for record in starts)
        changed += await change(
            "settle_starts", starts, attempts=attempts, owner=s.owner, seconds=s.lease_seconds
        )
    if done := mine(s.done):
        if s.keep_done:
            receipts = receipt_texts([s.receipts.get(record.id) for record in done])
            changed += await change("settle_done", done, receipts=receipts)
        else:
            deleted = await session.rows("settle_delete", **name(done))
            changed += len(deleted)
    histories: dict[int | str, object] = {}
    if told := s.told(held):
        seqs = numbers(record.seq for record in told)
        histories = dict(await session.rows("settle_history", seqs=seqs))
    if dead := [buried for buried in s.dead if buried.record.lane in held]:
        changed += await change(
            "settle_dead",
            (buried.record for buried in dead),
            attempts=numbers(buried.attempts for buried in dead),
            errors=[buried.last_error for buried in dead],
            histories=[new_history(buried, histories) for buried in dead],
        )
    if failed := [failure for failure in s.failed if failure.record.lane in held]:
        heads = [failure.record for failure in failed]
        changed += await change(
            "settle_failed",
            heads,
            attempts=numbers(failure.attempts for failure in failed),
            delays=[float(failure.delay) for failure in failed],
            errors=[failure.last_error for failure in failed],
            histories=[new_history(failure, histories) for failure in failed],
        )
        if any(head.seq < (head.barrier or 0) for head in heads):
            await change("settle_behind", heads)
        await change("settle_block", heads)
    if proposed := mine(s.expired):
        s.keep(await session.rows("settle_kept", **name(proposed)))
        changed += len(s.kept)
        if expired := s.truly_expired(held):
            told_now = [told for _, told in s.expiries(held, histories)]
            changed += await change("settle_expired", expired, histories=told_now)
    if returned := mine(s.returned):
        changed += await change("settle_returned", returned)
    if parked := mine(s.parked):
        await change("settle_parked", parked)
    return changed, deleted
