"""Operators' commands: replay, edit, bury, skip, purge (rules L7 and B6)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from postroom.commands import Edit, audit_entry, require_all
from postroom.errors import NotFoundError, StoreRetryableError
from postroom.event import MAX_ID_BYTES
from postroom.event import new_id as make_id
from postroom.model.codec import encode_json
from postroom.model.history import append, command
from postroom.model.unreadable_rows import refuse_to_skip, to_record
from postroom.record import key_hash, lane_of
from postroom.stores.edits import check_editable, edited
from postroom.stores.mysql.audit import record_audit
from postroom.stores.mysql.blocks import advance
from postroom.stores.mysql.leases import make_lanes
from postroom.stores.mysql.lookup import inboxes
from postroom.stores.mysql.records import decoded
from postroom.stores.mysql.session import Session


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


async def replay(session: Session, ids: Sequence[str], *, new_id: bool, by: str | None) -> int:
    lanes = await lanes_of(session, ids, finished=True)
    async with session.change():
        return len(await replay_in(session, ids, lanes, new_id=new_id, by=by))


async def replay_in(
    session: Session,
    ids: Sequence[str],
    lanes: Mapping[str, Collection[int]],
    *,
    new_id: bool,
    by: str | None,
    narrow: Callable[[list[int]], Awaitable[Collection[int]]] | None = None,
) -> list[str]:
    """Replay in the caller's transaction; returns the ids under which the events are sent.

    `narrow` returns which of these numbers to replay; their lanes are locked.
    """
    chosen = await _choose(session, ids, lanes, finished=True)
    if narrow is not None:
        kept = await narrow([event.seq for event in chosen])
        chosen = [event for event in chosen if event.seq in kept]
    entry = command(by, "replay")
    in_place = {e.seq: append(e.history, entry) for e in chosen if not new_id and e.kseq != 0}
    if in_place:
        session.later("replay", events=json.dumps(list(in_place.items())))
    sent = [make_id() if new_id else event.id for event in chosen]
    for event, name in zip(chosen, sent, strict=True):
        if event.seq in in_place:
            continue
        number = None if event.kseq is None else await _count_up(session, event)
        if new_id:
            _copy(session, event, name, number, None)
        else:
            session.later("rename", id=f"\x00{event.seq}", seq=event.seq)
            _copy(session, event, event.id, number, append(event.history, entry))
            session.later("replay_delete", seq=event.seq)
    if by is not None:
        entered = audit_entry(by, "replay", len(chosen), [e.id for e in chosen])
        await record_audit(session, entered)
    return sent


async def bury(
    session: Session,
    ids: Sequence[str],
    reason: str,
    *,
    by: str | None,
    history: str | None = None,
    attempts: int | None = None,
    whole: bool = False,
) -> int:
    lanes = await lanes_of(session, ids, finished=False)
    async with session.change():
        chosen = await _choose(session, ids, lanes, finished=False)
        if whole:
            require_all(ids, {event.id for event in chosen})
        if chosen:
            entry = command(by, "bury", reason)
            events = [(e.seq, history or append(e.history, entry)) for e in chosen]
            session.later("bury", events=json.dumps(events), reason=reason, attempts=attempts)
        for stream, hashed in sorted({(e.stream, e.key_hash) for e in chosen}):
            await advance(session, stream, hashed)
        if by is not None:
            await record_audit(
                session, audit_entry(by, "bury", len(chosen), [e.id for e in chosen], reason)
            )
        return len(chosen)


async def edit(session: Session, event_id: str, changes: Edit, *, by: str | None) -> str:
    lanes = await lanes_of(session, [event_id], finished=True)
    async with session.change():
        chosen = await _choose(session, [event_id], lanes, finished=True)
        rows = await session.rows("get", id=event_id)
        details = await session.rows("details", id=event_id)
        found = to_record((*decoded(rows[0]), None)) if rows else None
        record = check_editable(event_id, found, details[0][-1] if details else None)
        if not chosen:  # it died after its lane was looked for
            raise StoreRetryableError(f"event {event_id!r} has just become a dead letter")
        (event,) = chosen
        new_id = make_id()
        fields = edited(record, changes, new_id)
        if event.kseq:  # consumers wait for this number: the new event takes it, and its place
            session.later("rename", id=new_id, seq=event.seq)
            dead: dict[str, Any] = {"reason": record.last_error, "history": event.history}
            session.later("skip_copy", id=event_id, seq=event.seq, **dead)
            session.later("replay", events=json.dumps([(event.seq, None)]))
        else:
            number = None if event.kseq is None else await _count_up(session, event)
            _copy(session, event, new_id, number, None)
        began = append(None, command(by, "edit", f"replaces {event_id}"))
        session.later("edit", id=new_id, history=began, **fields._asdict())
        history = append(event.history, command(by, "edit", f"sent as {new_id}"))
        session.later("edit_replaced", id=event_id, replaced_by=new_id, history=history)
        if by is not None:
            await record_audit(session, audit_entry(by, "edit", 1, [event_id], f"sent as {new_id}"))
        return new_id


async def forget(
    session: Session, ids: Sequence[str], about: str, *, accepted: Sequence[str], by: str | None
) -> int:
    names = tuple(one.consumer for one in await inboxes(session)) if accepted else ()
    async with session.change():
        chosen = await session.rows("forget_chosen", ids=_unique(ids)) if ids else ()
        if chosen:
            session.later("forget", seqs=tuple(seq for (seq,) in chosen))
        if names:
            session.later("forget_inbox", consumers=names, ids=_unique(accepted))
        if by is not None:
            await record_audit(session, audit_entry(by, "forget", len(chosen), (), about))
        return len(chosen)


async def purge(session: Session, ids: Sequence[str], *, by: str | None) -> int:
    if not ids:
        return 0
    async with session.change():
        chosen = await session.rows("purge_chosen", ids=_unique(ids))
        if chosen:
            session.later("purge", seqs=tuple(seq for seq, _ in chosen))
        if by is not None:
            names = [name for _, name in chosen]
            await record_audit(session, audit_entry(by, "purge", len(names), names))
        return len(chosen)


async def skip(session: Session, event_id: str, reason: str, *, by: str | None) -> None:
    lanes = await lanes_of(session, [event_id], finished=False)
    async with session.change():
        chosen = await _choose(session, [event_id], lanes, finished=False)
        if not chosen:
            raise NotFoundError(f"cannot skip: there is no unfinished event with id {event_id!r}")
        (event,) = chosen
        (row,) = await session.rows("get", id=event_id)
        refuse_to_skip(event_id, (*decoded(row), None))
        payload = encode_json({"skipped": event.id, "reason": reason})
        session.later("rename", id=await _marker_id(session, event), seq=event.seq)
        history = append(event.history, command(by, "skip", reason))
        session.later("skip_copy", id=event.id, seq=event.seq, reason=reason, history=history)
        session.later("skip", seq=event.seq, payload=payload.decode(), size=len(payload))
        await advance(session, event.stream, event.key_hash)
        if by is not None:
            await record_audit(session, audit_entry(by, "skip", 1, [event_id], reason))


async def lanes_of(
    session: Session, ids: Sequence[str], *, finished: bool
) -> Mapping[str, Collection[int]]:
    """Return stream → lanes of the named events, and create the rows of lanes that were
    never leased.
    """
    lanes = defaultdict[str, set[int]](set)
    if ids:
        for row in await session.rows("chosen", ids=_unique(ids), finished=finished):
            event = _Chosen._make(row)
            lanes[event.stream].add(event.lane)
    for stream in lanes:
        await make_lanes(session, stream)
    return lanes


async def _choose(
    session: Session,
    ids: Sequence[str],
    lanes: Mapping[str, Collection[int]],
    *,
    finished: bool,
) -> list[_Chosen]:
    """Take the lanes of unfinished events from their owners (L7), or notify the owners of finished
    ones; return the named events in their then current state.

    The lanes are locked first, in the order in which a settle locks them.
    """
    for stream in sorted(lanes):
        statement = "replayed" if finished else "fence_lanes"
        await session.run(statement, stream=stream, lanes=tuple(sorted(lanes[stream])))
    if not lanes:
        return []
    rows = await session.rows("chosen_now", ids=_unique(ids), finished=finished)
    chosen = [_Chosen._make(row) for row in rows]
    return [event for event in chosen if event.lane in lanes.get(event.stream, ())]


def _unique(ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))


def _copy(
    session: Session, event: _Chosen, event_id: str, number: int | None, history: str | None
) -> None:
    """Append a copy; one with another id is as if it was added now, and has no history."""
    hashed = event.key_hash if event.key is not None else key_hash(None, None, event_id)
    session.later(
        "replay_copy",
        seq=event.seq,
        id=event_id,
        key_hash=hashed,
        lane=lane_of(hashed),
        kseq=number,
        is_new=event_id != event.id,
        history=history,
    )


async def _count_up(session: Session, event: _Chosen) -> int:
    key = {"topic": event.topic, "key_hash": event.key_hash}
    await session.run("count_up", **key)
    ((number,),) = await session.rows("count_up_read", **key)
    return int(number)


async def _marker_id(session: Session, event: _Chosen) -> str:
    """`skip:` and the event's id, plus its number if that is taken or too long."""
    for name in (f"skip:{event.id}", f"skip:{event.kseq}:{event.id}"):
        if len(name.encode()) <= MAX_ID_BYTES and not await session.rows("get", id=name):
            return name
    return f"skip:{event.seq}:{event.id}".encode()[:MAX_ID_BYTES].decode(errors="ignore")
