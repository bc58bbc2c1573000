"""Operations: stored work on many events, in fenced steps."""

from __future__ import annotations

import json
from typing import Any

from postroom.commands import MAX_WHO_CHARS
from postroom.model.clock import host_microseconds
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
from postroom.stores.operations import changed, ended, started, stored_error
from postroom.stores.sqlite.audit import note
from postroom.stores.sqlite.commands import replay_in
from postroom.stores.sqlite.thread import Database

_AHEAD = span_microseconds(AHEAD_SECONDS)


def operations(db: Database, *, unfinished: bool, limit: int) -> list[Operation]:
    name = "operations_unfinished" if unfinished else "operations"
    return [_operation(row) for row in _rows(db, name, limit=limit)]


def operation(db: Database, operation_id: str) -> Operation | None:
    found = _rows(db, "operation", id=operation_id)
    return _operation(found[0]) if found else None


def start_operation(db: Database, new: NewOperation, *, by: str) -> tuple[Operation, bool]:
    name = new_operation_id()
    values = {"kind": new.kind, "request": new.request, "who": by[:MAX_WHO_CHARS]}
    values["fingerprint"] = new.fingerprint
    with db.change() as now:
        is_new = bool(
            db.run("operation_start", id=name, total=new.total, now=now, **values).rowcount
        )
        if is_new:
            note(db, started(by, name, new), now)
        (row,) = _rows(db, "operation_like", fingerprint=new.fingerprint)
        return _operation(row), is_new


def take_operation(
    db: Database, operation_id: str, owner: str, lease_seconds: float
) -> Operation | None:
    with db.change() as now:
        until = now + span_microseconds(lease_seconds)
        if not db.run(
            "operation_take", id=operation_id, owner=owner, until=until, now=now, ahead=_AHEAD
        ).rowcount:
            return None
        return operation(db, operation_id)


def advance_operation(db: Database, held: Operation, step: Step) -> tuple[str, ...] | None:
    with db.change() as now:
        until = now + span_microseconds(step.lease_seconds)
        if not db.run(
            "operation_fence", id=held.id, owner=held.owner, token=held.token, until=until
        ).rowcount:
            return None

        def narrow(seqs: list[int]) -> set[int]:
            values = {"seqs": json.dumps(seqs), "state": step.of_state, "now": now}
            return {seq for (seq,) in db.rows("operation_chosen", id=held.id, **values)}

        sent: list[str] = []
        if step.ids:
            sent = replay_in(db, step.ids, now, new_id=step.new_id, by=held.who, narrow=narrow)
        db.run(
            "operation_advance",
            id=held.id,
            position=step.new_position(sent),
            handled=len(sent),
            failed=step.failed,
            state=str(step.to),
            error=stored_error(step),
            now=now,
            release=step.releases,
            over=step.to in FINISHED,
        )
        if step.to != OperationState.RUNNING:
            after = operation(db, held.id)
            assert after is not None
            note(db, ended(after, step), now)
        return tuple(sent)


def change_operation(db: Database, operation_id: str, change: Change, *, by: str) -> bool:
    before = json.dumps([str(state) for state in change.before])
    with db.change() as now:
        if not db.run(
            "operation_change",
            id=operation_id,
            state=str(change.after),
            before=before,
            now=now,
            over=change.after in FINISHED,
        ).rowcount:
            return False
        note(db, changed(by, operation_id, change), now)
        return True


def _rows(db: Database, name: str, **values: Any) -> list[Any]:
    return db.rows(name, now=host_microseconds(), ahead=_AHEAD, **values)


def _operation(row: tuple[Any, ...]) -> Operation:
    return Operation._make((*row[:-1], bool(row[-1])))
