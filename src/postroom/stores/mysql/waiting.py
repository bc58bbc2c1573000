"""Operators' commands on waiting events, which are not in flight: retry now, cancel, reschedule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from postroom.commands import audit_entry
from postroom.model.clock import instant_text
from postroom.model.history import append, command
from postroom.record import State
from postroom.stores.mysql.audit import record_audit
from postroom.stores.mysql.session import Session


class _Command(NamedTuple):
    verb: str
    statement: str
    state: State
    by: str | None
    reason: str = ""
    at: int | None = None


async def retry_now(session: Session, ids: Sequence[str], *, by: str | None) -> int:
    return await _change(session, ids, _Command("retry-now", "retry_now", State.FAILED, by))


async def cancel(session: Session, ids: Sequence[str], reason: str, *, by: str | None) -> int:
    return await _change(session, ids, _Command("cancel", "cancel", State.PENDING, by, reason))


async def reschedule(session: Session, ids: Sequence[str], at_us: int, *, by: str | None) -> int:
    reason = instant_text(at_us)
    wanted = _Command("reschedule", "reschedule", State.PENDING, by, reason, at_us)
    return await _change(session, ids, wanted)


async def _change(session: Session, ids: Sequence[str], wanted: _Command) -> int:
    names = tuple(dict.fromkeys(ids))
    state = str(wanted.state)
    found = await session.rows("waiting_chosen", ids=names, state=state) if names else ()
    if not found:
        return 0
    async with session.change():
        seqs = tuple(seq for (seq,) in found)
        chosen = await session.rows("waiting_lock", seqs=seqs, ids=names, state=state, at=wanted.at)
        entry = command(wanted.by, wanted.verb, wanted.reason)
        events = [(seq, None if wanted.by is None else append(h, entry)) for seq, _, h in chosen]
        if events:
            session.later(wanted.statement, events=json.dumps(events), at=wanted.at)
        if wanted.by is not None:
            changed = [name for _, name, _ in chosen]
            about = audit_entry(wanted.by, wanted.verb, len(changed), changed, wanted.reason)
            await record_audit(session, about)
        return len(events)
