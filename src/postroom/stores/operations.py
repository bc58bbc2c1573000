"""The audit entries of operations, in the same words on every store."""

from __future__ import annotations

from postroom.commands import AuditEntry, audit_entry
from postroom.operation import Change, NewOperation, Operation, OperationState, Step
from postroom.record import stored_error as masked


def started(by: str, operation_id: str, new: NewOperation) -> AuditEntry:
    """Return the audit entry of a start."""
    about = f"{operation_id}: {new.kind} {new.about}".rstrip()
    return audit_entry(by, "operation-start", new.total or 1, [about])


def changed(by: str, operation_id: str, change: Change) -> AuditEntry:
    """Return the audit entry of an operator's change."""
    return audit_entry(by, f"operation-{change}", 1, [operation_id])


def ended(after: Operation, step: Step) -> AuditEntry:
    """Return the audit entry of a step that ended or stopped an operation."""
    word = "done" if step.to == OperationState.DONE else "stop"
    count = after.handled or 1
    return audit_entry(after.who, f"operation-{word}", count, [after.id], step.error or "")


def stored_error(step: Step) -> str | None:
    """Return the error as it is stored."""
    return None if step.error is None else masked(step.error)
