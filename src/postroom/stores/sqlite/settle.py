"""Writes outcomes behind the fence (rules L2, L5, B1, B3, H1)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from json.encoder import encode_basestring_ascii as _quoted

from postroom.model import receipts
from postroom.model.durations import span_microseconds
from postroom.model.unreadable_rows import decode
from postroom.record import Record
from postroom.settlement import Settlement, new_history
from postroom.stores.sqlite.blocks import advance
from postroom.stores.sqlite.leases import held_lanes
from postroom.stores.sqlite.thread import Database
from postroom.transaction import Proof, by_place


def settle(db: Database, settlement: Settlement) -> set[int]:
    """Write outcomes behind the fence.

    Every change leaves finished events alone and sets absolute counts, so that repeating the
    settlement under a new token changes nothing more (L5).
    """
    s = settlement
    s.missing, s.lost, s.kept, changed = [], [], [], 0
    deleted: list[tuple[int, str]] = []
    histories: dict[int | str, object] = {}
    with db.change() as now:
        lanes = held_lanes(db, s.stream, s.owner, s.leases, now)
        if s.claims:
            lanes = s.weigh(lanes, holds(db, s.proofs()))
        where = {"stream": s.stream, "lanes": json.dumps(sorted(lanes))}
        odd = _odd_ids(db, s)

        def name(record: Record) -> str:
            return odd.get((record.seq, record.id), record.id) if odd else record.id

        def named(records: Iterable[Record]) -> str | None:
            # Not by the number alone: after a failover two events may have had the same one.
            names = [f'"{r.seq}":{_quoted(name(r))}' for r in records if r.lane in lanes]
            return "{" + ",".join(names) + "}" if names else None

        def change(statement: str, records: Iterable[Record], **more: object) -> int:
            names = named(records)
            return db.run(statement, names=names, **where, **more).rowcount if names else 0

        if starts := [(r.seq, name(r), r.attempts) for r in s.starts if r.lane in lanes]:
            until = now + span_microseconds(s.lease_seconds)
            changed += db.run(
                "settle_starts", starts=json.dumps(starts), owner=s.owner, until=until, **where
            ).rowcount
        if s.keep_done:
            if told := _receipts(s, lanes, name):
                changed += db.run("settle_done", **told, now=now, **where).rowcount
        elif names := named(s.done):
            deleted = db.rows("settle_delete", names=names, **where)
            changed += len(deleted)
        if failing := s.told(lanes):
            seqs = json.dumps([record.seq for record in failing])
            histories = dict(db.rows("settle_history", seqs=seqs))
        if dead := [
            (
                b.record.seq,
                name(b.record),
                b.attempts,
                b.last_error,
                new_history(b, histories),
            )
            for b in s.dead
            if b.record.lane in lanes
        ]:
            changed += db.run("settle_dead", dead=json.dumps(dead), now=now, **where).rowcount
        failed = [
            (
                f.record.seq,
                name(f.record),
                f.attempts,
                f.last_error,
                now + span_microseconds(f.delay),
                new_history(f, histories),
            )
            for f in s.failed
            if f.record.lane in lanes
        ]
        if failed:
            changed += db.run("settle_failed", failed=json.dumps(failed), **where).rowcount
            heads = [f.record for f in s.failed]
            if any(head.seq < (head.barrier or 0) for head in heads):
                change("settle_behind", heads)
            change("settle_block", heads, now=now)
        if names := named(s.expired):
            s.keep(db.rows("settle_kept", names=names, now=now))
            ends = json.dumps(s.expiries(lanes, histories))
            changed += len(s.kept)
            changed += change("settle_expired", s.truly_expired(lanes), now=now, histories=ends)
        changed += change("settle_returned", s.returned)
        change("settle_parked", s.parked)
        for record in s.freed(lanes):
            advance(db, s.stream, record.key_hash)
        if changed < sum(record.lane in lanes for record in s.named()):
            seqs = json.dumps([record.seq for record in s.named()])
            there = db.rows("settle_missing", seqs=seqs)
            s.missing = s.find_missing(lanes, [*there, *deleted])
        return lanes


def holds(db: Database, proofs: Sequence[Proof]) -> set[int]:
    """Return the indexes of the proofs that exist."""
    acceptances, counters = by_place(proofs)
    there = set[int]()
    if acceptances:
        asked = json.dumps(
            [(n, acceptance.consumer, acceptance.id) for n, acceptance in acceptances.items()]
        )
        there |= {n for (n,) in db.rows("holds_acceptances", acceptances=asked)}
    for place, (topic, key_hash, number) in counters.items():
        if db.rows("holds_counter", topic=topic, key_hash=key_hash, number=number):
            there.add(place)
    return there


def _receipts(
    s: Settlement, lanes: set[int], name: Callable[[Record], str]
) -> dict[str, str] | None:
    """Return the receipts of done events: the beginning that all share, and the rest of each."""
    done, get = [record for record in s.done if record.lane in lanes], s.receipts.get
    beginning, rests = receipts.common([get(record.id) for record in done])
    texts = ["null" if rest is None else _quoted(rest) for rest in rests]
    names = [_quoted(f"{record.seq}/{name(record)}") for record in done]
    found = "{" + ",".join(map(":".join, zip(names, texts, strict=True))) + "}"
    return {"beginning": beginning, "rests": found} if done else None


def _odd_ids(db: Database, s: Settlement) -> dict[tuple[int, str], str]:
    """Return how to address rows whose id is not text: number and id as read → its bytes."""
    flawed = [record for record in s.records() if record.flaw is not None]
    if not flawed:
        return {}
    stored = db.rows("settle_flawed", seqs=json.dumps([record.seq for record in flawed]))
    return {
        (seq, decode(name) if type(name) is bytes else str(name)): hexed
        for seq, name, hexed in stored
        if type(name) is not str
    }
