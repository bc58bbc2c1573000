"""Documents of the outbox as records, and places in the order as numbers.

A place is (`ct`, `n`), a BSON timestamp and a 64-bit number. The engine wants one number, which
grows with the place and can be taken apart again.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.timestamp import Timestamp

from postroom.record import Record

Document = dict[str, Any]

CODEC: CodecOptions[Document] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
"""Dates as the milliseconds that they are: no time zones to attach, and no year is out of range."""

DEAD = "dead"  # `awaits` of a dead letter

_fields = itemgetter(
    "_id",
    "stream",
    "lane",
    "key_hash",
    "event_type",
    "topic",
    "key",
    "aggregate_type",
    "aggregate_id",
)
_more = itemgetter(
    "content_type", "headers", "correlation_id", "causation_path", "schema_version", "kseq"
)


class Place(NamedTuple):
    """Where an event stands in the order."""

    ct: Timestamp
    n: int

    @property
    def seq(self) -> int:
        return (self.ct.time << 32 | self.ct.inc) << 64 | self.n

    @classmethod
    def of(cls, seq: int) -> Place:
        time = seq >> 64
        return cls(Timestamp(time >> 32, time & 0xFFFF_FFFF), Int64(seq & 0xFFFF_FFFF_FFFF_FFFF))


def seq_of(document: Mapping[str, Any]) -> int:
    """Return the place of a document as a number."""
    ct: Timestamp = document["ct"]
    return (ct.time << 32 | ct.inc) << 64 | int(document["n"])


def record_of(document: Mapping[str, Any], barrier: int | None = None) -> Record:
    """Return a document of the outbox as a record."""
    payload = document["payload"]
    due = document["next_attempt_at"]
    return Record._make(
        (
            seq_of(document),
            *_fields(document),
            payload.encode() if isinstance(payload, str) else bytes(payload),
            *_more(document),
            microseconds(document["occurred_at"]) + document["occurred_us"],
            microseconds(document["created_at"]),
            document["status"],
            document["attempts"],
            None if due is None else microseconds(due),
            document["last_error"],
            barrier,
        )
    )


def microseconds(date: DatetimeMS) -> int:
    """Return a date as microseconds since 1970."""
    return int(date) * 1000


def milliseconds(seconds: float) -> int:
    """Return a span as MongoDB counts it."""
    return round(seconds * 1000)


def lane_id(stream: str, lane: int) -> Document:
    """Return the `_id` of a lane's lease; the order of the fields is part of it."""
    return {"stream": stream, "lane": lane}


def key_id(stream: str, key_hash: bytes) -> Document:
    """Return the `_id` of a key's block."""
    return {"stream": stream, "key_hash": key_hash}
