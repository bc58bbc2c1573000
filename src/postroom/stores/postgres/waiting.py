"""Operators' commands on waiting events, which are not in flight: retry now, cancel, reschedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from postroom.commands import audit_entry
from postroom.model.clock import instant_text
from postroom.model.history import append, command
from postroom.record import State
from postroom.stores.postgres.audit import record_audit
from postroom.stores.postgres.database import Database
from postroom.stores.postgres.statements import numbers


class _Command(NamedTuple):
    verb: str
    statement: str
    state: State
    by: str | None
    reason: str = ""
    at: int | None = None


async def retry_now(db: Database, ids: Sequence[str], *, by: str | None) -> int:
    return await _change(db, ids, _Command("retry-now", "retry_now", State.FAILED, by))


async def cancel(db: Database, ids: Sequence[str], reason: str, *, by: str | None) -> int:
    return await _change(db, ids, _Command("cancel", "cancel", State.PENDING, by, reason))


async def reschedule(db: Database, ids: Sequence[str], at_us: int, *, by: str | None) -> int:
    reason = instant_text(at_us)
    wanted = _Command("reschedule", "reschedule", State.PENDING, by, reason, at_us)
    return await _change(db, ids, wanted)


async def _change(db: Database, ids: Sequence[str], wanted: _Command) -> int:
    async with db.change() as session:
        chosen = await session.rows(
            "waiting_chosen", ids=list(ids), state=str(wanted.state), at=wanted.at
        )
        entry = command(wanted.by, wanted.verb, wanted.reason)
        more = {} if wanted.at is None else {"at": wanted.at}
        await session.run(
            wanted.statement,
            seqs=numbers(seq for seq, _, _ in chosen),
            histories=[None if wanted.by is None else append(h, entry) for _, _, h in chosen],
            **more,
        )
        names = [name for _, name, _ in chosen]
        if wanted.by is not None:
            about = audit_entry(wanted.by, wanted.verb, len(names), names, wanted.reason)
            await record_audit(session, about)
        return len(names)
