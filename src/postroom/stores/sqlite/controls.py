"""Controls: pauses of streams, topics and consumers, which operators set at run time."""

from __future__ import annotations

from postroom.commands import MAX_WHO_CHARS
from postroom.model.clock import host_microseconds
from postroom.model.controls import Control, check_control
from postroom.record import short_error
from postroom.stores.controls import control_entry
from postroom.stores.sqlite.audit import note
from postroom.stores.sqlite.thread import Database


def controls(db: Database) -> list[Control]:
    found = [Control._make(row) for row in db.rows("controls", now=host_microseconds())]
    return [one._replace(paused=bool(one.paused)) for one in found]


def set_control(
    db: Database, kind: str, name: str, *, pause: bool, seconds: float | None, reason: str, by: str
) -> bool:
    check_control(kind, name)
    values = {"kind": kind, "name": name, "reason": short_error(reason), "who": by[:MAX_WHO_CHARS]}
    with db.change() as now:
        if pause:
            until = None if seconds is None else now + int(seconds * 1_000_000)
            db.run("pause", now=now, until=until, **values)
        elif not db.run("resume", now=now, **values).rowcount:
            return False
        entry = control_entry(by, kind, name, pause=pause, seconds=seconds, reason=reason)
        note(db, entry, now)
    return True
