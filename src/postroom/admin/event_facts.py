"""An event as data: in one line of a list, and in full with its timeline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from postroom.admin.texts import instant
from postroom.admin.timeline import timeline
from postroom.lookup import Details
from postroom.model import history, receipts
from postroom.model.codec import JSON
from postroom.record import Record
from postroom.store import Lease, Store

MOST_LEVELS = 100


def summary(record: Record) -> dict[str, Any]:
    """Return an event as `list --json` prints it. `seq` is text: it may exceed 53 bits."""
    return {
        "seq": str(record.seq),
        "id": record.id,
        "stream": record.stream,
        "state": record.state,
        "type": record.type,
        "topic": record.topic,
        "key": record.key,
        "aggregate_type": record.aggregate_type,
        "aggregate_id": record.aggregate_id,
        "correlation_id": record.correlation_id,
        "causation_id": record.causation_id,
        "attempts": record.attempts,
        "created_at": instant(record.created_us),
        "next_attempt_at": instant(record.next_attempt_us),
        "last_error": record.last_error,
        "size": record.size,
        "flaw": record.flaw,
    }


async def lane_of(store: Store, record: Record) -> tuple[Lease | None, str]:
    """Return the lease of an event's lane, and the name of the relay that holds it."""
    membership = await store.leases(record.stream)
    lease = next((lease for lease in membership.leases if lease.lane == record.lane), None)
    names = {member.owner: member.name for member in membership.members}
    return lease, names.get(lease.owner or "", "") if lease is not None else ""


def describe(
    record: Record,
    details: Details,
    lane: tuple[Lease | None, str],
    received: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return an event as `show --json` prints it."""
    lease, relay = lane
    told = history.read(details.history)
    held = lease is not None and lease.live
    return {
        **summary(record),
        "stage": details.stage,
        "lane": record.lane,
        "lane_owner": lease.owner if lease is not None and held else None,
        "lane_relay": relay or None if held else None,
        "blocked_after": None if details.barrier is None else str(details.barrier),
        "lease_owner": details.lease_owner,
        "lease_until": instant(details.lease_until_us),
        "kseq": record.kseq,
        "causation_path": [list(step) for step in record.causation_path],
        "replaced_by": details.replaced_by,
        "schema_version": record.schema_version,
        "headers": dict(record.headers),
        "options": dict(record.options) or None,
        "content_type": record.content_type,
        "payload": payload_facts(record),
        "receipt": receipts.read(details.receipt) or None,
        "received": list(received),
        "timeline": timeline(record, details, lane, received),
        "history": told._asdict(),
    }


def payload_facts(record: Record) -> dict[str, Any]:
    """Return the payload as `json`, as `text` if it is nested too deeply, or as `hex`."""
    if record.tombstone:
        return {"json": None}
    if record.content_type == JSON:
        try:
            value = json.loads(record.payload)
            if not _is_deep(value):
                return {"json": value}
            return {"text": record.payload.decode()}
        except RecursionError:
            with suppress(UnicodeDecodeError):
                return {"text": record.payload.decode()}
        except ValueError:
            pass  # a row written by other means than `add`
    return {"hex": record.payload.hex()}


def _is_deep(value: Any) -> bool:
    """Return whether a value is nested too deeply to be printed as an indented tree."""
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [
            item
            for outer in level
            if isinstance(outer, (dict, list))
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
