"""The documents of the outbox, the inbox and the counters in MongoDB: one place for their format.

Adapters write it, in the caller's transaction; the store reads and settles it.

A position is (`ct`, `n`), a BSON timestamp and a 64-bit number. The engine needs one number, which
grows with the position and can be split again.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from types import NoneType
from typing import Any, NamedTuple

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo import UpdateOne

from postroom.model.clock import from_microseconds, host_microseconds
from postroom.record import Stage, State
from postroom.transaction import Acceptance, Row

Document = dict[str, Any]
Expression = Any

CLUSTER_TIME = "$$CLUSTER_TIME"
NEVER = 0  # `awaits` of an event that waits for nothing
DEAD = "dead"  # `awaits` of a dead letter
HASH_BYTES = 16

_FRESH = {"$eq": [{"$type": "$ct"}, "missing"]}
_LAST_MS = 253_402_300_799_999  # of the year 9999
_EPOCH = 1_577_836_800_000_000  # 2020 in microseconds: 63 bits are enough until 2091

_TEXT, _TEXT_OR_NULL, _NUMBER = (str,), (str, NoneType), (int, Int64)
_DATE, _DATE_OR_NULL = (DatetimeMS,), (DatetimeMS, NoneType)
_NEVER_WAS = DatetimeMS(0)
FIELDS: Mapping[str, tuple[tuple[type, ...], Any]] = {
    "_id": (_TEXT, ""),
    "stream": (_TEXT, ""),
    "lane": ((int,), 0),
    "key_hash": ((bytes,), b""),
    "event_type": (_TEXT, ""),
    "topic": (_TEXT, ""),
    "key": (_TEXT_OR_NULL, None),
    "aggregate_type": (_TEXT_OR_NULL, None),
    "aggregate_id": (_TEXT_OR_NULL, None),
    "payload": ((str, bytes, Binary), ""),
    "content_type": (_TEXT, ""),
    "headers": (_TEXT_OR_NULL, None),
    "correlation_id": (_TEXT_OR_NULL, None),
    "causation_path": (_TEXT_OR_NULL, None),
    "schema_version": (_NUMBER, 0),
    "kseq": ((*_NUMBER, NoneType), None),
    "size": ((int,), 0),
    "occurred_at": (_DATE, _NEVER_WAS),
    "occurred_us": (_NUMBER, 0),
    "created_at": (_DATE, _NEVER_WAS),
    "available_at": (_DATE_OR_NULL, None),
    "status": (_TEXT, State.PENDING.value),
    "stage": (_TEXT, Stage.READY.value),
    "attempts": (_NUMBER, 0),
    "next_attempt_at": (_DATE_OR_NULL, None),
    "last_error": (_TEXT_OR_NULL, None),
    "lease_owner": (_TEXT_OR_NULL, None),
    "lease_until": (_DATE_OR_NULL, None),
    "settled_at": (_DATE_OR_NULL, None),
    "ct": ((Timestamp,), Timestamp(0, 0)),
    "n": ((Int64,), Int64(0)),
}
"""The fields of an event: the valid types, and a placeholder."""

EXTRAS: Mapping[str, tuple[type, ...]] = {
    "causation_id": _TEXT_OR_NULL,
    "options": _TEXT_OR_NULL,
    "expires_at": _DATE_OR_NULL,
}
"""Fields that most events lack: absent is the same as null."""


# -- ids -------------------------------------------------------------------------------------------
def lane_id(stream: str, lane: int) -> Document:
    """Return the `_id` of a lane's lease; the order of the fields is part of it."""
    return {"stream": stream, "lane": lane}


def key_id(stream: str, hashed: bytes) -> Document:
    """Return the `_id` of a key's block."""
    return {"stream": stream, "key_hash": hashed}


def inbox_id(consumer: str, message_id: str) -> Document:
    """Return the `_id` of a message in the inbox."""
    return {"consumer": consumer, "id": message_id}


def counter_id(topic: str, hashed: bytes) -> Document:
    """Return the `_id` of a key's strict counter."""
    return {"topic": topic, "key_hash": hashed}


# -- positions and the clock -----------------------------------------------------------------------
_MOST_N = 2**63 - 1


class Place(NamedTuple):
    """The position of an event in the order."""

    ct: Timestamp
    n: int

    @property
    def seq(self) -> int:
        return (self.ct.time << 32 | self.ct.inc) << 64 | self.n

    @classmethod
    def of(cls, seq: int) -> Place:
        """Return the position of this number, or the last one before it that an event can have."""
        time = min(seq >> 64, 0xFFFF_FFFF_FFFF_FFFF)
        n = min(seq & 0xFFFF_FFFF_FFFF_FFFF, _MOST_N)
        return cls(Timestamp(time >> 32, time & 0xFFFF_FFFF), Int64(n))


def seq_of(document: Mapping[str, Any]) -> int:
    """Return the position of a document as a number; 0 if it has none."""
    try:
        ct: Timestamp = document["ct"]
        return (ct.time << 32 | ct.inc) << 64 | int(document["n"])
    except (KeyError, AttributeError, TypeError, ValueError):
        return 0


_lock = Lock()
_last = 0


def place_numbers(count: int, salt: bytes) -> list[Int64]:
    """Return the next values of `n` in this process.

    They follow the host's clock and never go back, so that unrelated writers that add at one
    cluster time are usually ordered by time, too. The salt, 12 bits per writer, keeps two processes
    from choosing the same number.
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

The server's own timestamps start at one again if it is started twice within a second.
"""


def clock_of(clock: Mapping[str, Any]) -> Timestamp:
    """Return the time that a tick of the clock has returned."""
    return Timestamp(int(clock["seconds"]), int(clock["tick"]))


def milliseconds(seconds: float) -> int:
    """Return a time span in MongoDB's unit."""
    return round(seconds * 1000)


# -- writes ----------------------------------------------------------------------------------------
def document(row: Row, ct: Expression, n: int) -> Expression:
    """Return an expression for the document of a new event.

    User values are literals: a `$` in them has no meaning.
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
    if row.causation_id is not None:
        fixed["causation_id"] = row.causation_id
    if row.options is not None:
        fixed["options"] = row.options
    if row.expires_us is not None:
        fixed["expires_at"] = _ceil(row.expires_us)
    decided: dict[str, Expression] = {"ct": ct, "created_at": "$$NOW"}
    if due is not None:
        late = {"$gt": [due, "$$NOW"]}
        decided["stage"] = {"$cond": [late, "waiting", "ready"]}
        decided["awaits"] = {"$cond": [late, due, NEVER]}
        decided["next_attempt_at"] = {"$cond": [late, due, None]}
    return {"$mergeObjects": [{"$literal": fixed}, decided]}


def _ceil(microseconds: int) -> DatetimeMS:
    """Return an instant in MongoDB's whole milliseconds: never earlier than requested.

    The last millisecond of the year 9999 is the maximum: drivers cannot read later dates.
    """
    return DatetimeMS(min(-(-microseconds // 1000), _LAST_MS))


def upsert_of(row: Row, ct: Expression, n: int) -> UpdateOne:
    """Write a new document; leave an existing one unchanged.

    An insert would abort the whole transaction if the id exists (W5).
    """
    new = {"$cond": [_FRESH, document(row, ct, n), "$$ROOT"]}
    return UpdateOne({"_id": row.id}, [{"$replaceWith": new}], upsert=True)


CANCELLED: Document = {
    "$set": {
        "status": "cancelled",
        "stage": "over",
        "awaits": "cancelled",
        "next_attempt_at": None,
        "lease_owner": None,
        "lease_until": None,
    },
    "$currentDate": {"settled_at": True},
}
"""The update that cancels an event."""


def waiting_of(event_id: str) -> Document:
    """Return a filter for an event that waits for its first attempt: it was never ready."""
    return {
        "_id": event_id,
        "stage": "waiting",
        "status": "pending",
        "awaits": {"$type": "date"},
        "kseq": None,
    }


def reschedule_of(event_id: str, at_us: int) -> tuple[Document, Document]:
    """Return the filter and the update that change the time of a waiting event."""
    at = _ceil(at_us)
    keeps = {"$or": [{"expires_at": None}, {"expires_at": {"$gt": at}}]}
    change = {"available_at": at, "next_attempt_at": at, "awaits": at}
    return {**waiting_of(event_id), **keeps}, {"$set": change}


def accept_of(acceptance: Acceptance) -> list[dict[str, Any]]:
    """Return the update that marks a message as done; a first acceptance is left unchanged."""
    done = {"$eq": ["$status", "done"]}
    fields: dict[str, Expression] = {
        "event_type": {"$ifNull": ["$event_type", {"$literal": acceptance.type}]},
        "correlation_id": {"$ifNull": ["$correlation_id", {"$literal": acceptance.correlation_id}]},
        "status": "done",
        "received_at": {"$ifNull": ["$received_at", "$$NOW"]},
        "processed_at": {"$cond": [done, "$processed_at", "$$NOW"]},
    }
    return [{"$set": fields}]
