"""Operators' commands: replay, edit, bury, skip, purge (rules L7 and B6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
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
from postroom.stores.postgres.audit import record_audit
from postroom.stores.postgres.blocks import advance
from postroom.stores.postgres.database import Database, Session
from postroom.stores.postgres.lookup import inboxes
from postroom.stores.postgres.statements import numbers


class _Chosen(NamedTuple):
    seq: int
    id: str
    stream: str
    lane: int
    key_hash: bytes
    key: str | None
    topic: str
    kseq: int | None
    history: object


async def replay(db: Database, ids: Sequence[str], *, new_id: bool, by: str | None) -> int:
    async with db.change() as session:
        return len(await replay_in(session, ids, new_id=new_id, by=by))


async def replay_in(
    session: Session,
    ids: Sequence[str],
    *,
    new_id: bool,
    by: str | None,
    narrow: Callable[[list[int]], Awaitable[Collection[int]]] | None = None,
) -> list[str]:
    """Replay in the caller's transaction; returns the ids under which the events are sent.

    `narrow` returns which of these numbers to replay; their lanes are locked.
    """
    chosen = await _choose(session, ids, over=True)
    if narrow is not None:
        kept = await narrow([event.seq for event in chosen])
        chosen = [event for event in chosen if event.seq in kept]
    entry = command(by, "replay")
    in_place = {e.seq: append(e.history, entry) for e in chosen if not new_id and e.kseq != 0}
    histories = list(in_place.values())
    await session.run("replay", seqs=numbers(in_place), histories=histories)
    sent = [make_id() if new_id else event.id for event in chosen]
    for event, name in zip(chosen, sent, strict=True):
        if event.seq in in_place:
            continue
        number = None if event.kseq is None else await _count_up(session, event)
        if new_id:
            await _copy(session, event, name, number, None)
        else:
            # No event id begins with this: `add` refuses control characters.
            await session.run("rename", id=f"\x01{event.seq}", seq=event.seq)
            history = append(event.history, entry)
            await _copy(session, event, event.id, number, history)
            await session.run("replay_delete", seq=event.seq)
    if by is not None:
        entered = audit_entry(by, "replay", len(chosen), [e.id for e in chosen])
        await record_audit(session, entered)
    return sent


async def bury(
    db: Database,
    ids: Sequence[str],
    reason: str,
    *,
    by: str | None,
    history: str | None = None,
    attempts: int | None = None,
    whole: bool = False,
) -> int:
    async with db.change() as session:
        chosen = await _choose(session, ids, over=False)
        if whole:
            require_all(ids, {event.id for event in chosen})
        entry = command(by, "bury", reason)
        histories = [history or append(e.history, entry) for e in chosen]
        seqs = numbers(e.seq for e in chosen)
        await session.run("bury", seqs=seqs, histories=histories, reason=reason, attempts=attempts)
        for stream in {e.stream for e in chosen}:
            await advance(session, stream, {e.key_hash for e in chosen if e.stream == stream})
        if by is not None:
            await record_audit(
                session, audit_entry(by, "bury", len(chosen), [e.id for e in chosen], reason)
            )
        return len(chosen)


async def edit(db: Database, event_id: str, changes: Edit, *, by: str | None) -> str:
    async with db.change() as session:
        chosen = await _choose(session, [event_id], over=True)
        rows = await session.rows("get", id=event_id)
        found = to_record((*rows[0], None)) if rows else None
        details = await session.rows("details", id=event_id)
        record = check_editable(event_id, found, details[0][-1] if details else None)
        (event,) = chosen
        new_id = make_id()
        fields = edited(record, changes, new_id)
        if event.kseq:  # consumers wait for this number: the new event takes it, and its place
            await session.run("rename", id=new_id, seq=event.seq)
            error = record.last_error
            await session.run(
                "skip_copy", id=event_id, seq=event.seq, reason=error, history=event.history
            )
            await session.run("replay", seqs=numbers([event.seq]), histories=[None])
        else:
            number = None if event.kseq is None else await _count_up(session, event)
            await _copy(session, event, new_id, number, None)
        told = append(None, command(by, "edit", f"replaces {event_id}"))
        await session.run("edit", id=new_id, history=told, **fields._asdict())
        history = append(event.history, command(by, "edit", f"sent as {new_id}"))
        await session.run("edit_replaced", id=event_id, replaced_by=new_id, history=history)
        if by is not None:
            await record_audit(session, audit_entry(by, "edit", 1, [event_id], f"sent as {new_id}"))
        return new_id


async def forget(
    db: Database, ids: Sequence[str], about: str, *, accepted: Sequence[str], by: str | None
) -> int:
    async with db.change() as session:
        gone = await session.run("forget", ids=list(ids))
        names = [one.consumer for one in await inboxes(session)] if accepted else []
        if names:
            await session.run("forget_inbox", consumers=names, ids=list(accepted))
        if by is not None:
            await record_audit(session, audit_entry(by, "forget", gone, (), about))
        return gone


async def purge(db: Database, ids: Sequence[str], *, by: str | None) -> int:
    async with db.change() as session:
        names = [name for (name,) in await session.rows("purge", ids=list(ids))]
        if by is not None:
            await record_audit(session, audit_entry(by, "purge", len(names), names))
        return len(names)


async def skip(db: Database, event_id: str, reason: str, *, by: str | None) -> None:
    async with db.change() as session:
        chosen = await _choose(session, [event_id], over=False)
        if not chosen:
            raise NotFoundError(f"cannot skip: there is no unfinished event with id {event_id!r}")
        (event,) = chosen
        (row,) = await session.rows("get", id=event_id)
        refuse_to_skip(event_id, (*row, None))
        payload = encode_json({"skipped": event.id, "reason": reason})
        await session.run("rename", id=await _marker_id(session, event), seq=event.seq)
        history = append(event.history, command(by, "skip", reason))
        await session.run("skip_copy", id=event.id, seq=event.seq, reason=reason, history=history)
        await session.run("skip", seq=event.seq, payload=payload.decode(), size=len(payload))
        await advance(session, event.stream, {event.key_hash})
        if by is not None:
            await record_audit(session, audit_entry(by, "skip", 1, [event_id], reason))


async def _choose(session: Session, ids: Sequence[str], *, over: bool) -> list[_Chosen]:
    """Return the named events: unfinished ones, whose lanes are taken from their owners, or
    finished ones, whose owners are notified.

    Locks come first: a settle in progress may still decide about an event.
    """
    wanted = list(ids)
    streams = [name for (name,) in await session.rows("chosen_streams", ids=wanted)]
    await session.run("beat_lanes", streams=streams)
    await session.rows("fence_lock", ids=wanted)
    rows = await session.rows("chosen", ids=wanted, over=over)
    chosen = [_Chosen._make(row) for row in rows]
    statement = "replayed" if over else "fence_lanes"
    await session.run(statement, seqs=numbers(event.seq for event in chosen))
    return chosen


async def _copy(
    session: Session, event: _Chosen, event_id: str, number: int | None, history: str | None
) -> None:
    """Append a copy; one with another id is as if it was added now, and has no history."""
    hashed = event.key_hash if event.key is not None else key_hash(None, None, event_id)
    await session.run(
        "replay_copy",
        seq=event.seq,
        id=event_id,
        key_hash=hashed,
        lane=lane_of(hashed),
        kseq=number,
        fresh=event_id != event.id,
        history=history,
    )


async def _count_up(session: Session, event: _Chosen) -> int:
    ((number,),) = await session.rows("count_up", topic=event.topic, key_hash=event.key_hash)
    return int(number)


async def _marker_id(session: Session, event: _Chosen) -> str:
    """`skip:` and the event's id, plus its number if that is taken or too long."""
    for name in (f"skip:{event.id}", f"skip:{event.kseq}:{event.id}"):
        if len(name.encode()) <= MAX_ID_BYTES and not await session.rows("get", id=name):
            return name
    return f"skip:{event.seq}:{event.id}".encode()[:MAX_ID_BYTES].decode(errors="ignore")
