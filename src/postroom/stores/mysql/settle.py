"""Writes outcomes behind the fence (rules L2, L5, B1, B3, H1)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from postroom.errors import StoreError
from postroom.model import receipts
from postroom.model.durations import span_microseconds
from postroom.model.unreadable_rows import decode
from postroom.record import Record
from postroom.settlement import DeadOutcome, FailedOutcome, Settlement, new_history
from postroom.stores.mysql.blocks import advance
from postroom.stores.mysql.leases import fence
from postroom.stores.mysql.session import Listed, Session
from postroom.transaction import Proof, by_place


async def settle(session: Session, settlement: Settlement) -> set[int]:
    """Write outcomes behind the fence.

    Every change leaves finished events alone and sets absolute counts, so that repeating the
    settlement under a new token changes nothing more (L5).
    """
    s = settlement
    s.missing, s.lost, s.kept = [], [], []
    async with session.change():
        lanes = set(await fence(session, s.stream, s.owner, s.leases))
        if s.claims and lanes:
            lanes = s.weigh(lanes, await holds(session, s.proofs()))
        where: dict[str, Any] = {"stream": s.stream, "lanes": tuple(sorted(lanes))}

        odd = await _odd_ids(session, s)

        def name(record: Record) -> bytes:
            known = odd.get((record.seq, record.id)) if odd else None
            return record.id.encode() if known is None else known

        def named(records: Iterable[Record]) -> dict[str, Any]:
            names = sorted((r.seq, name(r)) for r in records if r.lane in lanes)
            seqs = tuple(seq for seq, _ in names)
            return {"seqs": seqs, "names": tuple(names), **where} if names else {}

        if starts := sorted(
            (r.seq, name(r).hex(), r.attempts) for r in s.starts if r.lane in lanes
        ):
            lease = span_microseconds(s.lease_seconds)
            session.later(
                "settle_starts",
                counted=True, starts=_json(starts), owner=s.owner, lease=lease, **where,
            )  # fmt: skip
        if done := named(s.done):
            if s.keep_done:
                session.later("settle_done", counted=True, **_receipts(s, done["seqs"]), **done)
            elif session.flavour == "mariadb":
                session.later("settle_delete_returning", fetched=True, **done)
            else:
                session.later("settle_there", fetched=True, **done)
                session.later("settle_delete", **done)
        histories: dict[int | str, object] = {}
        if told := tuple(record.seq for record in s.told(lanes)):
            histories = dict(await session.rows("settle_history", seqs=told))
        if dead := [
            (
                b.record.seq,
                name(b.record).hex(),
                b.attempts,
                b.last_error,
                new_history(b, histories),
            )
            for b in sorted(s.dead, key=_place)
            if b.record.lane in lanes
        ]:
            session.later("settle_dead", counted=True, dead=_json(dead), **where)
        if failed := [
            (
                f.record.seq,
                name(f.record).hex(),
                f.attempts,
                f.last_error,
                span_microseconds(f.delay),
                new_history(f, histories),
            )
            for f in sorted(s.failed, key=_place)
            if f.record.lane in lanes
        ]:
            session.later("settle_failed", counted=True, failed=_json(failed), **where)
            heads = named(f.record for f in s.failed)
            if any(f.record.seq < (f.record.barrier or 0) for f in s.failed):
                session.later("settle_behind", **heads)
            session.later("settle_block", **heads)
        if proposed := named(s.expired):
            kept = await session.rows("settle_kept", **proposed)
            s.keep([(seq, str(decode(name))) for seq, name in kept])
            if expired := named(s.truly_expired(lanes)):
                told_now = _json(s.expiries(lanes, histories))
                session.later("settle_expired", counted=True, histories=told_now, **expired)
        if returned := named(s.returned):
            session.later("settle_returned", counted=True, **returned)
        if parked := named(s.parked):
            session.later("settle_parked", **parked)
        for record in s.freed(lanes):
            await advance(session, s.stream, record.key_hash)
    changed = session.changed + len(session.fetched) + len(s.kept)
    if changed < sum(record.lane in lanes for record in s.named()):
        deleted = session.fetched
        with suppress(StoreError):  # the settle itself is committed
            seqs = tuple(record.seq for record in s.named())
            there = await session.rows("settle_missing", seqs=seqs)
            found = [(seq, str(decode(name))) for seq, name in [*there, *deleted]]
            s.missing = s.find_missing(lanes, found)
    return lanes


async def holds(session: Session, proofs: Sequence[Proof]) -> set[int]:
    """Return the indexes of the proofs that exist."""
    acceptances, counters = by_place(proofs)
    there = set[int]()
    if acceptances:
        names = {
            n: (acceptance.consumer.encode(), acceptance.id.encode())
            for n, acceptance in acceptances.items()
        }
        consumers, ids = zip(*names.values(), strict=True)
        rows = await session.rows(
            "holds_acceptances",
            consumers=tuple(set(consumers)),
            ids=tuple(set(ids)),
            acceptances=tuple(set(names.values())),
        )
        done = {(bytes(consumer), bytes(name)) for consumer, name in rows}
        there |= {n for n, name in names.items() if name in done}
    if counters:
        keys = {(c.topic.encode(), c.key_hash) for c in counters.values()}
        topics, hashed = zip(*keys, strict=True)
        rows = await session.rows(
            "holds_counters",
            topics=tuple(set(topics)),
            keys=tuple(set(hashed)),
            counters=tuple(keys),
        )
        last = {(bytes(topic), bytes(key)): int(number) for topic, key, number in rows}
        there |= {
            n for n, c in counters.items() if last.get((c.topic.encode(), c.key_hash), 0) >= c.step
        }
    return there


def _receipts(s: Settlement, places: Sequence[int]) -> dict[str, Any]:
    """Return the receipts of done events by number; none for a number that two of them have."""
    by_number = {r.seq: s.receipts.get(r.id) for r in s.done} if s.receipts else {}
    if len(set(places)) < len(places):
        by_number |= {seq: None for seq, count in Counter(places).items() if count > 1}
    beginning, rests = receipts.common(map(by_number.get, places))
    if len(set(rests)) == 1:  # all are the same, or there are none
        places, rests = places[:1], rests[:1]  # of the smallest number: it is the place of all
    return {"beginning": beginning, "places": Listed(places), "rests": Listed(rests)}


async def _odd_ids(session: Session, s: Settlement) -> dict[tuple[int, str], bytes]:
    """Return the ids of rows that cannot be events as stored: they may not be text."""
    flawed = tuple(record.seq for record in s.records() if record.flaw is not None)
    if not flawed:
        return {}
    stored = await session.rows("settle_missing", seqs=flawed)
    return {(seq, str(decode(name))): name for seq, name in stored}


def _place(outcome: FailedOutcome | DeadOutcome) -> int:
    return outcome.record.seq


def _json(rows: Sequence[object]) -> str:
    return json.dumps(rows, ensure_ascii=False)
