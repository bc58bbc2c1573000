"""Operations: stored work on many events, in fenced steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroom.commands import MAX_WHO_CHARS
from postroom.errors import StoreRetryableError
from postroom.model.durations import span_microseconds
from postroom.operation import (
    AHEAD_SECONDS,
    FINISHED,
    Change,
    NewOperation,
    Operation,
    OperationState,
    Step,
    new_operation_id,
)
from postroom.stores.mysql.audit import record_audit
from postroom.stores.mysql.commands import lanes_of, replay_in
from postroom.stores.mysql.session import Session
from postroom.stores.operations import changed, ended, started, stored_error

_AHEAD = span_microseconds(AHEAD_SECONDS)


async def operations(session: Session, *, unfinished: bool, limit: int) -> list[Operation]:
    name = "operations_unfinished" if unfinished else "operations"
    return [_operation(row) for row in await session.rows(name, ahead=_AHEAD, limit=limit)]


async def operation(session: Session, operation_id: str) -> Operation | None:
    found = await session.rows("operation", id=operation_id, ahead=_AHEAD)
    return _operation(found[0]) if found else None


async def start_operation(
    session: Session, new: NewOperation, *, by: str
) -> tuple[Operation, bool]:
    name = new_operation_id()
    values: dict[str, Any] = {"kind": new.kind, "request": new.request, "who": by[:MAX_WHO_CHARS]}
    values |= {"fingerprint": new.fingerprint, "total": new.total}
    async with session.change():
        await session.run("operation_start", id=name, **values)
        found = await session.rows("operation_like", fingerprint=new.fingerprint, ahead=_AHEAD)
        is_new = bool(found) and _operation(found[0]).id == name
        if is_new:
            await record_audit(session, started(by, name, new))
    if not found:  # the one with this request has ended meanwhile
        raise StoreRetryableError("an operation with the same request has just ended; try again")
    return _operation(found[0]), is_new


async def take_operation(
    session: Session, operation_id: str, owner: str, lease_seconds: float
) -> Operation | None:
    lease = span_microseconds(lease_seconds)
    async with session.change():
        values = {"microseconds": lease, "ahead": _AHEAD}
        if not await session.run("operation_take", id=operation_id, owner=owner, **values):
            return None
        return await operation(session, operation_id)


async def advance_operation(
    session: Session, held: Operation, step: Step
) -> tuple[str, ...] | None:
    async def narrow(seqs: list[int]) -> set[int]:
        if not seqs:
            return set()
        values: dict[str, Any] = {"seqs": tuple(seqs), "state": step.of_state}
        found = await session.rows("operation_chosen", id=held.id, **values)
        return {seq for (seq,) in found}

    lanes = await lanes_of(session, step.ids, finished=True)
    async with session.change():
        fence = {"owner": held.owner, "token": held.token}
        if not await session.rows("operation_fence", id=held.id, **fence):
            return None
        sent: list[str] = []
        if step.ids:
            sent = await replay_in(
                session, step.ids, lanes, new_id=step.new_id, by=held.who, narrow=narrow
            )
        await session.run(
            "operation_advance",
            id=held.id,
            position=step.new_position(sent),
            handled=len(sent),
            failed=step.failed,
            state=str(step.to),
            error=stored_error(step),
            release=step.releases,
            over=step.to in FINISHED,
            microseconds=span_microseconds(step.lease_seconds),
        )
        if step.to != OperationState.RUNNING:
            after = await operation(session, held.id)
            assert after is not None
            await record_audit(session, ended(after, step))
        return tuple(sent)


async def change_operation(session: Session, operation_id: str, change: Change, *, by: str) -> bool:
    before = tuple(str(state) for state in change.before)
    over = change.after in FINISHED
    async with session.change():
        if not await session.run(
            "operation_change", id=operation_id, state=str(change.after), before=before, over=over
        ):
            return False
        await record_audit(session, changed(by, operation_id, change))
        return True


def _operation(row: Sequence[Any]) -> Operation:
    return Operation._make((*row[:-1], bool(row[-1])))
