"""Controls: pauses of streams, topics and consumers, which operators set at run time."""

from __future__ import annotations

from postroom.commands import MAX_WHO_CHARS
from postroom.model.controls import Control, check_control
from postroom.record import short_error
from postroom.stores.controls import control_entry
from postroom.stores.mysql.audit import record_audit
from postroom.stores.mysql.session import Session


async def controls(session: Session) -> list[Control]:
    found = [Control._make(row) for row in await session.rows("controls")]
    return [one._replace(paused=bool(one.paused)) for one in found]


async def set_control(
    session: Session,
    kind: str,
    name: str,
    *,
    pause: bool,
    seconds: float | None,
    reason: str,
    by: str,
) -> bool:
    check_control(kind, name)
    values = {"kind": kind, "name": name, "reason": short_error(reason), "who": by[:MAX_WHO_CHARS]}
    async with session.change():
        if pause:
            length = None if seconds is None else int(seconds * 1_000_000)
            await session.run("pause", microseconds=length, **values)
        elif not await session.run("resume", **values):
            return False
        await record_audit(
            session, control_entry(by, kind, name, pause=pause, seconds=seconds, reason=reason)
        )
    return True
