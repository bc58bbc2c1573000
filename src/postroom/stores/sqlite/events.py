"""Read, settle, stage, repair blocks and prune (rules R and B)."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii as _quoted
from operator import attrgetter

from postroom.model.clock import host_microseconds
from postroom.model.durations import span_microseconds
from postroom.model.unreadable_rows import decode, to_records
from postroom.record import Record, short_error
from postroom.store import ReadRequest, Settlement, Staged
from postroom.stores.sqlite.errors import is_not_text
from postroom.stores.sqlite.leases import held_lanes
from postroom.stores.sqlite.thread import Database
from postroom.transaction import Proof, by_place

ADVANCE_STEP = 500
_CHUNK = 50  # rows fetched at once: limits what a read holds beyond its byte limit

_payload = attrgetter("payload")
_headers = attrgetter("headers_json")


def read(db: Database, request: ReadRequest) -> list[Record]:
    """Select by the index alone, then fetch the selected rows, in one snapshot.

    Oldest first, because rows that were written together are on the same pages: a settle in the
    order of lanes would write several times as many.
    """
    with db.snapshot():
        seqs = _choose(db, request)
        if not seqs:
            return []
        asked = json.dumps(seqs)
        try:
            return _fetch(db.run("read", seqs=asked), request.size)
        except sqlite3.OperationalError as error:
            if not is_not_text(error):
                raise
        with db.reading_any_text():  # slower, until the row in question has been settled
            return _fetch(db.run("read", seqs=asked), request.size)


def _fetch(cursor: sqlite3.Cursor, room: int) -> list[Record]:
    """Make records of the rows that fit, a few at a time; always of the first one."""
    found: list[Record] = []
    while rows := cursor.fetchmany(_CHUNK):
        records = to_records(rows)
        weight = sum(map(len, map(_payload, records)))
        weight += sum(len(headers) for headers in map(_headers, records) if headers)
        if weight <= room:
            room -= weight
            found += records
            continue
        for record in records:
            room -= record.size
            if room < 0 and found:
                break
            found.append(record)
        break
    return found


def _choose(db: Database, request: ReadRequest) -> list[int]:
    """Return the numbers to read: the first of each lane, then the oldest of the rest."""
    where = {
        "stream": request.stream,
        "lanes": json.dumps([(lane, request.tokens.get(lane)) for lane in request.lanes]),
        "per_lane": request.per_lane,
        "owner": request.owner,
    }
    if request.exclude:
        exclude = json.dumps([key.hex().upper() for key in request.exclude])
        lanes = db.rows("read_seqs_except", exclude=exclude, **where)
    else:
        lanes = db.rows("read_seqs", **where)
    heads: list[int] = []
    rest: list[int] = []
    for (numbers,) in lanes:
        seqs = json.loads(numbers)
        heads += seqs[:1]
        rest += seqs[1:]
    rest.sort()
    return (heads + rest)[: max(request.rows, 1)]


def settle(db: Database, settlement: Settlement) -> set[int]:
    """Write outcomes behind the fence.

    Every change leaves finished events alone and sets absolute counts, so that repeating the
    settlement under a new token changes nothing more (L5).
    """
    s = settlement
    s.missing, s.lost, changed = [], [], 0
    deleted: list[tuple[int, str]] = []
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
            changed += change("settle_done", s.done, now=now)
        elif names := named(s.done):
            deleted = db.rows("settle_delete", names=names, **where)
            changed += len(deleted)
        if dead := [
            (b.record.seq, name(b.record), b.attempts, short_error(b.error))
            for b in s.dead
            if b.record.lane in lanes
        ]:
            changed += db.run("settle_dead", dead=json.dumps(dead), now=now, **where).rowcount
        failed = [
            (r.seq, name(r), attempts, short_error(error), now + span_microseconds(delay))
            for r, attempts, delay, error in s.failed
            if r.lane in lanes
        ]
        if failed:
            changed += db.run("settle_failed", failed=json.dumps(failed), **where).rowcount
            heads = [f.record for f in s.failed]
            if any(head.seq < (head.barrier or 0) for head in heads):
                change("settle_behind", heads)
            change("settle_block", heads, now=now)
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


def advance(db: Database, stream: str, key_hash: bytes) -> bool:
    """Let a key whose barrier event has ended go on: its next followers, or all of them and the
    block is lifted.

    Does nothing while the barrier's event is unfinished. Call it inside a change.
    """
    key = {"stream": stream, "key_hash": key_hash}
    if not db.rows("advance_open", **key):
        return False
    moved = [seq for (seq,) in db.rows("advance", step=ADVANCE_STEP, **key)]
    if len(moved) == ADVANCE_STEP and db.rows("advance_more", **key):
        db.run("advance_barrier", barrier=max(moved), **key)
    else:
        db.run("advance_unblock", **key)
    return True


def stage(db: Database, stream: str, lanes: Sequence[int], limit: int) -> Staged:
    """Move due events; takes the write lock only if there are some."""
    where = {"stream": stream, "lanes": json.dumps(list(lanes))}
    ((due, ready),) = db.rows("stage_look", **where)
    now, moved = host_microseconds(), 0
    if isinstance(due, int) and due <= now:
        with db.change() as now:
            # Each lane separately, in any order: one that is full of due events holds up no other.
            for lane in random.sample(lanes, len(lanes)):
                most = min(-(-limit // 4), limit - moved)
                moved += db.run("stage", stream=stream, lane=lane, now=now, most=most).rowcount
                if moved >= limit:
                    break
            ((due, ready),) = db.rows("stage_look", **where)
    wait = max(0.0, (due - now) / 1_000_000) if isinstance(due, int) else None
    return Staged(moved, wait, bool(ready))


def repair_blocks(
    db: Database, stream: str, owner: str, leases: Mapping[int, int], limit: int
) -> int:
    """Repair blocks from the stored state; takes the write lock only if one is broken."""
    if not db.rows("repair_blocks", stream=stream, lanes=json.dumps(list(leases)), limit=1):
        return 0
    with db.change() as now:
        lanes = json.dumps(sorted(held_lanes(db, stream, owner, leases, now)))
        broken = db.rows("repair_blocks", stream=stream, lanes=lanes, limit=limit)
        return sum(advance(db, stream, key_hash) for (key_hash,) in broken)


def prune(db: Database, older_than_seconds: float, limit: int) -> int:
    """Delete old done events; takes the write lock only if there are some."""
    before = host_microseconds() - span_microseconds(older_than_seconds)
    if not db.rows("prune_any", before=before):
        return 0
    with db.change():
        return db.run("prune", before=before, limit=limit).rowcount
