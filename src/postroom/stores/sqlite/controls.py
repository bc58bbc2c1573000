"""Controls: pauses and limits, which operators set at run time."""

from __future__ import annotations

from postroom.commands import MAX_WHO_CHARS
from postroom.model.clock import host_microseconds
from postroom.model.controls import Control, check_control, check_limits
from postroom.record import short_error
from postroom.stores.controls import control_entry, limit_entry
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


def set_limits(
    db: Database, kind: str, name: str, *, per_second: float | None, in_flight: int | None, by: str
) -> bool:
    check_limits(kind, name, per_second, in_flight)
    limits = {"per_second": per_second, "in_flight": in_flight}
    with db.change() as now:
        if per_second is None and in_flight is None:
            if not db.run("unlimit", kind=kind, name=name, now=now).rowcount:
                return False
        else:
            db.run("limit", kind=kind, name=name, who=by[:MAX_WHO_CHARS], now=now, **limits)
        note(db, limit_entry(by, kind, name, per_second, in_flight), now)
    return True
