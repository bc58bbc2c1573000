"""Controls: pauses and limits, which operators set at run time."""

from __future__ import annotations

from postroom.commands import MAX_WHO_CHARS
from postroom.model.controls import Control, check_control, check_limits
from postroom.record import short_error
from postroom.stores.controls import control_entry, limit_entry
from postroom.stores.postgres.audit import record_audit
from postroom.stores.postgres.database import Database


async def controls(db: Database) -> list[Control]:
    return [Control._make(row) for row in await db.rows("controls")]


async def set_control(
    db: Database, kind: str, name: str, *, pause: bool, seconds: float | None, reason: str, by: str
) -> bool:
    check_control(kind, name)
    values = {"kind": kind, "name": name, "reason": short_error(reason), "who": by[:MAX_WHO_CHARS]}
    async with db.change() as session:
        if pause:
            await session.run("pause", seconds=seconds, **values)
        elif not await session.run("resume", **values):
            return False
        await record_audit(
            session, control_entry(by, kind, name, pause=pause, seconds=seconds, reason=reason)
        )
    return True


async def set_limits(
    db: Database,
    kind: str,
    name: str,
    *,
    per_second: float | None,
    in_flight: int | None,
    by: str,
) -> bool:
    check_limits(kind, name, per_second, in_flight)
    limits = {"per_second": per_second, "in_flight": in_flight}
    async with db.change() as session:
        if per_second is None and in_flight is None:
            if not await session.run("unlimit", kind=kind, name=name):
                return False
        else:
            await session.run("limit", kind=kind, name=name, who=by[:MAX_WHO_CHARS], **limits)
        await record_audit(session, limit_entry(by, kind, name, per_second, in_flight))
    return True
