"""The documents of events and of the inbox in MongoDB: one place for their format."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any

from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo import UpdateOne

from postroom.model.clock import from_microseconds, host_microseconds
from postroom.transaction import Acceptance, Row

Expression = Any


CLUSTER_TIME = "$$CLUSTER_TIME"


NEVER = 0  # `awaits` of an event that waits for nothing


_FRESH = {"$eq": [{"$type": "$ct"}, "missing"]}


_LAST_MS = 253_402_300_799_999  # of the year 9999


_EPOCH = 1_577_836_800_000_000  # 2020 in microseconds: 63 bits are enough until 2091


_lock = Lock()


_last = 0


# -- documents -------------------------------------------------------------------------------------
def place_numbers(count: int, salt: bytes) -> list[Int64]:
    """Return the next values of `n` in this process.

    They follow the host's clock, so that strangers who add at one cluster time are mostly in the
    order of their adds too, and never go back. The salt, 12 bits of the writer's own, keeps two
    processes from giving one number.
    """
    global _last  # noqa: PLW0603
    tail = int.from_bytes(salt[:2], "big") & 0xFFF
    with _lock:
        first = max(_last + 1, host_microseconds() - _EPOCH)
        _last = first + count - 1
    return [Int64(n << 12 | tail) for n in range(first, first + count)]


_SECONDS = {"$toLong": {"$floor": {"$divide": [{"$toLong": "$$NOW"}, 1000]}}}


_BEFORE = {"$ifNull": ["$seconds", 0]}


CLOCK = {"_id": "clock"}


TICK = [
    {
        "$set": {
            "seconds": {"$max": [_BEFORE, _SECONDS]},
            "tick": {"$cond": [{"$gt": [_SECONDS, _BEFORE]}, 1, {"$add": ["$tick", 1]}]},
        }
    }
]
"""The clock of a standalone server, a document: it never goes back, whatever the server's does.

The server's own timestamps begin at one again if it is started twice within a second.
"""


def clock_of(ticket: Mapping[str, Any]) -> Timestamp:
    """Return the time that a tick of the clock has brought."""
    return Timestamp(int(ticket["seconds"]), int(ticket["tick"]))


def document(row: Row, ct: Expression, n: int) -> Expression:
    """Return an expression for the document of a new event.

    What the user wrote is literal: a `$` in it means nothing.
    """
    payload = row.payload if row.payload is not None else row.payload_bytes
    due = None if row.available_us is None else _ceil(row.available_us)
    fixed = {
        "_id": row.id,
        "stream": row.stream,
        "lane": row.lane,
        "key_hash": row.key_hash,
        "event_type": row.type,
        "topic": row.topic,
        "key": row.key,
        "aggregate_type": row.aggregate_type,
        "aggregate_id": row.aggregate_id,
        "payload": payload,
        "content_type": row.content_type,
        "headers": row.headers,
        "correlation_id": row.correlation_id,
        "causation_path": row.causation_path,
        "schema_version": row.schema_version,
        "kseq": None if row.kseq is None else Int64(row.kseq),
        "size": row.size,
        "occurred_at": from_microseconds(row.occurred_us // 1000 * 1000),
        "occurred_us": row.occurred_us % 1000,
        "available_at": due,
        "status": "pending",
        "stage": "ready",
        "awaits": NEVER,
        "attempts": 0,
        "next_attempt_at": None,
        "last_error": None,
        "lease_owner": None,
        "lease_until": None,
        "settled_at": None,
        "n": Int64(n),
    }
    decided: dict[str, Expression] = {"ct": ct, "created_at": "$$NOW"}
    if due is not None:
        late = {"$gt": [due, "$$NOW"]}
        decided["stage"] = {"$cond": [late, "waiting", "ready"]}
        decided["awaits"] = {"$cond": [late, due, NEVER]}
        decided["next_attempt_at"] = {"$cond": [late, due, None]}
    return {"$mergeObjects": [{"$literal": fixed}, decided]}


def _ceil(microseconds: int) -> DatetimeMS:
    """Return an instant in MongoDB's whole milliseconds: never earlier than asked for.

    The last millisecond of the year 9999 is the last: drivers cannot read what comes after it.
    """
    return DatetimeMS(min(-(-microseconds // 1000), _LAST_MS))


def upsert_of(row: Row, ct: Expression, n: int) -> UpdateOne:
    """Write a new document; leave one that is there as it is.

    An insert would abort the whole transaction if the id is there (W5).
    """
    new = {"$cond": [_FRESH, document(row, ct, n), "$$ROOT"]}
    return UpdateOne({"_id": row.id}, [{"$replaceWith": new}], upsert=True)


def _accepted(acceptance: Acceptance) -> list[dict[str, Any]]:
    done = {"$eq": ["$status", "done"]}
    fields: dict[str, Expression] = {
        "event_type": {"$ifNull": ["$event_type", {"$literal": acceptance.type}]},
        "correlation_id": {"$ifNull": ["$correlation_id", {"$literal": acceptance.correlation_id}]},
        "status": "done",
        "received_at": {"$ifNull": ["$received_at", "$$NOW"]},
        "processed_at": {"$cond": [done, "$processed_at", "$$NOW"]},
    }
    return [{"$set": fields}]
