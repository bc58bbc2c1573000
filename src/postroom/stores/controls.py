"""The audit entries of pauses, in the same words on every store."""

from __future__ import annotations

from postroom.commands import AuditEntry, audit_entry


def control_entry(
    by: str, kind: str, name: str, *, pause: bool, seconds: float | None, reason: str
) -> AuditEntry:
    """Return the audit entry of a pause or its end."""
    about = f"{kind} {name}" + (f" for {seconds:g} s" if pause and seconds is not None else "")
    return audit_entry(by, "pause" if pause else "resume", 1, [about], reason)
