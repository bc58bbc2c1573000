"""The steps that cancel and reschedule an event that waits for its first attempt."""

from __future__ import annotations

from datetime import datetime

from postroom.event import MAX_ID_BYTES, check_field, check_instant
from postroom.model.clock import to_microseconds
from postroom.transaction import AsyncTransaction, SyncTransaction
from postroom.transactions.steps import Steps


def cancel(tx: AsyncTransaction | SyncTransaction, event_id: str) -> Steps[bool]:
    """Cancel an event; returns whether it took effect."""
    check_field("id", event_id, MAX_ID_BYTES)
    return (yield tx.cancel(event_id)) is not None


def reschedule(tx: AsyncTransaction | SyncTransaction, event_id: str, at: datetime) -> Steps[bool]:
    """Change the time of an event; returns whether it took effect."""
    check_field("id", event_id, MAX_ID_BYTES)
    check_instant("at", at)
    return (yield tx.reschedule(event_id, to_microseconds(at))) is not None
