"""Operators' commands: replay, edit, bury, skip, purge (rules L7 and B6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from postroom.commands import Edit, audit_entry, require_all
from postroom.errors import NotFoundError
from postroom.event import MAX_ID_BYTES
from postroom.event import new_id as make_id
from postroom.model.codec import encode_json
from postroom.model.history import append, command
from postroom.model.unreadable_rows import refuse_to_skip, to_record
from postroom.record import key_hash, lane_of
from postroom.stores.edits import check_editable, edited
from postroom.stores.sqlite.audit import note
from postroom.stores.sqlite.blocks import advance
from postroom.stores.sqlite.lookup import inboxes
from postroom.stores.sqlite.thread import Database


class _Chosen(NamedTuple):
    seq: int
    id: str
    stream: str
    lane: int
    key_hash: bytes
    key: str | None
    topic: str
    kseq: int | None
    created_at: int
    history: object


def replay(db: Database, ids: Sequence[str], *, new_id: bool, by: str | None) -> int:
    with db.change() as now:
        return len(replay_in(db, ids, now, new_id=new_id, by=by))


def replay_in(
    db: Database,
    ids: Sequence[str],
    now: int,
    *,
    new_id: bool,
    by: str | None,
    narrow: Callable[[list[int]], Collection[int]] | None = None,
) -> list[str]:
    """Replay in the caller's transaction; returns the ids under which the events are sent.

    `narrow` returns which of these numbers to replay.
    """
    chosen = _choose(db, ids, over=True, now=now)
    if narrow is not None:
        kept = narrow([event.seq for event in chosen])
        chosen = [event for event in chosen if event.seq in kept]
    entry = command(by, "replay")
    in_place = {e.seq: append(e.history, entry) for e in chosen if not new_id and e.kseq != 0}
    db.run("replay", events=json.dumps(list(in_place.items())))
    sent = [make_id() if new_id else event.id for event in chosen]
    for event, name in zip(chosen, sent, strict=True):
        if event.seq in in_place:
            continue
        number = None if event.kseq is None else _count_up(db, event)
        if new_id:
            _copy(db, event, name, number, now, None)
        else:
            db.run("rename", id=f"\x00{event.seq}", seq=event.seq)
            history = append(event.history, entry)
            _copy(db, event, event.id, number, event.created_at, history)
            db.run("replay_delete", seq=event.seq)
    if by is not None:
        note(db, audit_entry(by, "replay", len(chosen), [e.id for e in chosen]), now)
    return sent


def bury(
    db: Database,
    ids: Sequence[str],
    reason: str,
    *,
    by: str | None,
    history: str | None = None,
    attempts: int | None = None,
    whole: bool = False,
) -> int:
    with db.change() as now:
        chosen = _choose(db, ids, over=False, now=now)
        if whole:
            require_all(ids, {event.id for event in chosen})
        entry = command(by, "bury", reason)
        events = [(e.seq, history or append(e.history, entry)) for e in chosen]
        db.run("bury", events=json.dumps(events), reason=reason, attempts=attempts, now=now)
        for stream, hashed in {(e.stream, e.key_hash) for e in chosen}:
            advance(db, stream, hashed)
        if by is not None:
            note(db, audit_entry(by, "bury", len(chosen), [e.id for e in chosen], reason), now)
        return len(chosen)


def edit(db: Database, event_id: str, changes: Edit, *, by: str | None) -> str:
    with db.change() as now:
        chosen = _choose(db, [event_id], over=True, now=now)
        rows, details = db.rows("get", id=event_id), db.rows("details", id=event_id)
        found = to_record((*rows[0], None)) if rows else None
        record = check_editable(event_id, found, details[0][-1] if details else None)
        (event,) = chosen
        new_id = make_id()
        fields = edited(record, changes, new_id)
        if event.kseq:  # consumers wait for this number: the new event takes it, and its place
            db.run("rename", id=new_id, seq=event.seq)
            told = {"reason": record.last_error, "history": event.history}
            db.run("skip_copy", id=event_id, seq=event.seq, now=now, **told)
            db.run("replay", events=json.dumps([(event.seq, None)]))
        else:
            number = None if event.kseq is None else _count_up(db, event)
            _copy(db, event, new_id, number, now, None)
        began = append(None, command(by, "edit", f"replaces {event_id}"))
        db.run("edit", id=new_id, history=began, now=now, **fields._asdict())
        history = append(event.history, command(by, "edit", f"sent as {new_id}"))
        db.run("edit_replaced", id=event_id, replaced_by=new_id, history=history)
        if by is not None:
            note(db, audit_entry(by, "edit", 1, [event_id], f"sent as {new_id}"), now)
        return new_id


def forget(
    db: Database, ids: Sequence[str], about: str, *, accepted: Sequence[str], by: str | None
) -> int:
    with db.change() as now:
        gone = db.run("forget", ids=json.dumps(list(ids))).rowcount
        names = [one.consumer for one in inboxes(db)] if accepted else []
        if names:
            erased = json.dumps(list(accepted))
            db.run("forget_inbox", consumers=json.dumps(names), ids=erased)
        if by is not None:
            note(db, audit_entry(by, "forget", gone, (), about), now)
        return gone


def purge(db: Database, ids: Sequence[str], *, by: str | None) -> int:
    with db.change() as now:
        names = [name for (name,) in db.rows("purge", ids=json.dumps(list(ids)))]
        if by is not None:
            note(db, audit_entry(by, "purge", len(names), names), now)
        return len(names)


def skip(db: Database, event_id: str, reason: str, *, by: str | None) -> None:
    with db.change() as now:
        chosen = _choose(db, [event_id], over=False, now=now)
        if not chosen:
            raise NotFoundError(f"cannot skip: there is no unfinished event with id {event_id!r}")
        (event,) = chosen
        refuse_to_skip(event_id, (*db.rows("get", id=event_id)[0], None))
        payload = encode_json({"skipped": event.id, "reason": reason})
        db.run("rename", id=_marker_id(db, event), seq=event.seq)
        history = append(event.history, command(by, "skip", reason))
        db.run("skip_copy", id=event.id, seq=event.seq, reason=reason, history=history, now=now)
        db.run("skip", seq=event.seq, payload=payload.decode(), size=len(payload), now=now)
        advance(db, event.stream, event.key_hash)
        if by is not None:
            note(db, audit_entry(by, "skip", 1, [event_id], reason), now)


def _choose(db: Database, ids: Sequence[str], *, over: bool, now: int) -> list[_Chosen]:
    """Return the named events: unfinished ones, whose lanes are taken from their owners, or
    finished ones, whose owners are notified.
    """
    rows = db.rows("chosen", ids=json.dumps(list(ids)), over=over)
    chosen = [_Chosen._make(row) for row in rows]
    seqs = json.dumps([event.seq for event in chosen])
    if over:
        db.run("replayed", seqs=seqs, now=now)
    else:
        db.run("fence_lanes", seqs=seqs)
    return chosen


def _copy(
    db: Database,
    event: _Chosen,
    event_id: str,
    number: int | None,
    created_at: int,
    history: str | None,
) -> None:
    hashed = event.key_hash if event.key is not None else key_hash(None, None, event_id)
    db.run(
        "replay_copy",
        seq=event.seq,
        id=event_id,
        key_hash=hashed,
        lane=lane_of(hashed),
        kseq=number,
        created_at=created_at,
        history=history,
    )


def _count_up(db: Database, event: _Chosen) -> int:
    ((number,),) = db.rows("count_up", topic=event.topic, key_hash=event.key_hash)
    return int(number)


def _marker_id(db: Database, event: _Chosen) -> str:
    """`skip:` and the event's id, plus its number if that is taken or too long."""
    for name in (f"skip:{event.id}", f"skip:{event.kseq}:{event.id}"):
        if len(name.encode()) <= MAX_ID_BYTES and not db.rows("get", id=name):
            return name
    return f"skip:{event.seq}:{event.id}".encode()[:MAX_ID_BYTES].decode(errors="ignore")
