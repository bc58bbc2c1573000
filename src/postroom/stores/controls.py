"""The audit entries of pauses and limits, in the same words on every store."""

from __future__ import annotations

from postroom.commands import AuditEntry, audit_entry
from postroom.model.controls import limits_text


def control_entry(
    by: str, kind: str, name: str, *, pause: bool, seconds: float | None, reason: str
) -> AuditEntry:
    """Return the audit entry of a pause or its end."""
    about = f"{kind} {name}" + (f" for {seconds:g} s" if pause and seconds is not None else "")
    return audit_entry(by, "pause" if pause else "resume", 1, [about], reason)


def limit_entry(
    by: str, kind: str, name: str, per_second: float | None, in_flight: int | None
) -> AuditEntry:
    """Return the audit entry of limits."""
    return audit_entry(by, "limit", 1, [f"{kind} {name}"], limits_text(per_second, in_flight))
