"""Operators' commands on waiting events, which are not in flight: retry now, cancel, reschedule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from postroom.commands import audit_entry
from postroom.model.clock import instant_text
from postroom.model.history import append, command
from postroom.record import State
from postroom.stores.sqlite.audit import note
from postroom.stores.sqlite.thread import Database


class _Command(NamedTuple):
    verb: str
    statement: str
    state: State
    by: str | None
    reason: str = ""
    at: int | None = None


def retry_now(db: Database, ids: Sequence[str], *, by: str | None) -> int:
    return _change(db, ids, _Command("retry-now", "retry_now", State.FAILED, by))


def cancel(db: Database, ids: Sequence[str], reason: str, *, by: str | None) -> int:
    return _change(db, ids, _Command("cancel", "cancel", State.PENDING, by, reason))


def reschedule(db: Database, ids: Sequence[str], at_us: int, *, by: str | None) -> int:
    reason = instant_text(at_us)
    return _change(db, ids, _Command("reschedule", "reschedule", State.PENDING, by, reason, at_us))


def _change(db: Database, ids: Sequence[str], wanted: _Command) -> int:
    with db.change() as now:
        state = str(wanted.state)
        chosen = db.rows("waiting_chosen", ids=json.dumps(list(ids)), state=state, at=wanted.at)
        entry = command(wanted.by, wanted.verb, wanted.reason)
        events = [(seq, None if wanted.by is None else append(h, entry)) for seq, _, h in chosen]
        db.run(wanted.statement, events=json.dumps(events), now=now, at=wanted.at)
        names = [name for _, name, _ in chosen]
        if wanted.by is not None:
            note(db, audit_entry(wanted.by, wanted.verb, len(names), names, wanted.reason), now)
        return len(names)
