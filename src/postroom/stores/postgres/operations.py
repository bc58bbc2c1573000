"""Operations: stored work on many events, in fenced steps."""

from __future__ import annotations

from typing import Any

from postroom.commands import MAX_WHO_CHARS
from postroom.errors import StoreRetryableError
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
from postroom.stores.operations import changed, ended, started, stored_error
from postroom.stores.postgres.audit import record_audit
from postroom.stores.postgres.commands import replay_in
from postroom.stores.postgres.database import Database, Session
from postroom.stores.postgres.statements import numbers


async def operations(db: Database, *, unfinished: bool, limit: int) -> list[Operation]:
    name = "operations_unfinished" if unfinished else "operations"
    return [Operation._make(row) for row in await db.rows(name, ahead=AHEAD_SECONDS, limit=limit)]


async def operation(db: Database | Session, operation_id: str) -> Operation | None:
    found = await db.rows("operation", id=operation_id, ahead=AHEAD_SECONDS)
    return Operation._make(found[0]) if found else None


async def start_operation(db: Database, new: NewOperation, *, by: str) -> tuple[Operation, bool]:
    name = new_operation_id()
    values: dict[str, Any] = {"kind": new.kind, "request": new.request, "who": by[:MAX_WHO_CHARS]}
    values |= {"fingerprint": new.fingerprint, "total": new.total}
    async with db.change() as session:
        is_new = bool(await session.run("operation_start", id=name, **values))
        if is_new:
            await record_audit(session, started(by, name, new))
        found = await session.rows(
            "operation_like", fingerprint=new.fingerprint, ahead=AHEAD_SECONDS
        )
    if not found:  # the one with this request has ended meanwhile
        raise StoreRetryableError("an operation with the same request has just ended; try again")
    return Operation._make(found[0]), is_new


async def take_operation(
    db: Database, operation_id: str, owner: str, lease_seconds: float
) -> Operation | None:
    async with db.change() as session:
        values = {"seconds": lease_seconds, "ahead": AHEAD_SECONDS}
        if not await session.run("operation_take", id=operation_id, owner=owner, **values):
            return None
        return await operation(session, operation_id)


async def advance_operation(db: Database, held: Operation, step: Step) -> tuple[str, ...] | None:
    async with db.change() as session:

        async def narrow(seqs: list[int]) -> set[int]:
            values = {"seqs": numbers(seqs), "state": step.of_state}
            found = await session.rows("operation_chosen", id=held.id, **values)
            return {seq for (seq,) in found}

        fence = {"owner": held.owner, "token": held.token, "seconds": step.lease_seconds}
        if not await session.run("operation_fence", id=held.id, **fence):
            return None
        sent: list[str] = []
        if step.ids:
            sent = await replay_in(
                session, step.ids, new_id=step.new_id, by=held.who, narrow=narrow
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
        )
        if step.to != OperationState.RUNNING:
            after = await operation(session, held.id)
            assert after is not None
            await record_audit(session, ended(after, step))
        return tuple(sent)


async def change_operation(db: Database, operation_id: str, change: Change, *, by: str) -> bool:
    before = [str(state) for state in change.before]
    over = change.after in FINISHED
    async with db.change() as session:
        if not await session.run(
            "operation_change", id=operation_id, state=str(change.after), before=before, over=over
        ):
            return False
        await record_audit(session, changed(by, operation_id, change))
        return True
