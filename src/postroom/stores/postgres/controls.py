"""Controls: pauses of streams, topics and consumers, which operators set at run time."""

from __future__ import annotations

from postroom.commands import MAX_WHO_CHARS
from postroom.model.controls import Control, check_control
from postroom.record import short_error
from postroom.stores.controls import control_entry
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
