"""Records as strangers send them to Kafka: odd, broken, and hostile ones.

Each has a name, the record, and what a consumer must make of it: `handled`, or a word of the
reason of its dead letter.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.servers.kafka_wire import RawRecord

TYPE = (b"postroom-type", b"order.created")


class Odd(NamedTuple):
    """One record of the corpus."""

    name: str
    record: RawRecord
    end: str = "handled"


def _with(*headers: tuple[bytes, bytes | None], value: bytes | None = b"{}") -> RawRecord:
    return RawRecord(value, headers=(TYPE, *headers))


CORPUS = [
    Odd("name-latin1", _with((b"caf\xe9", b"1")), "not UTF-8"),
    Odd("name-latin1-only", RawRecord(headers=[(b"caf\xe9", b"1")]), "not UTF-8"),
    Odd("name-latin1-first", RawRecord(headers=[(b"\xff", b"1"), TYPE]), "not UTF-8"),
    Odd("names-latin1-twice", _with((b"\xff", b"1"), (b"\xfe", b"2")), "not UTF-8"),
    Odd("name-latin1-among-many", _with(*[(b"h", b"v")] * 300, (b"\xff", b"1"), *[(b"i", b"v")] * 300), "not UTF-8"),
    Odd("name-surrogate", _with((b"\xed\xa0\x80", b"1")), "not UTF-8"),
    Odd("name-cut-short", _with((b"\xf0\x9f\xa6", b"1")), "not UTF-8"),
    Odd("name-latin1-null-value", _with((b"caf\xe9", None)), "not UTF-8"),
    Odd("name-latin1-tombstone", _with((b"caf\xe9", b"1"), value=None), "not UTF-8"),
    Odd("name-empty", _with((b"", b"1"))),
    Odd("name-nul", _with((b"a\x00b", b"1"))),
    Odd("name-long", _with((b"n" * 40_000, b"1"))),
    Odd("value-null", _with((b"a", None))),
    Odd("value-empty", _with((b"a", b""))),
    Odd("value-bytes", _with((b"a", bytes(range(256))))),
    Odd("value-long", _with((b"a", b"v" * 200_000))),
    Odd("headers-many", _with(*[(b"h%d" % n, b"v") for n in range(2_000)])),
    Odd("id-bytes", _with((b"postroom-id", b"\xff\xfe\x00"))),
    Odd("id-null", _with((b"postroom-id", None))),
    Odd("id-empty", _with((b"postroom-id", b""))),
    Odd("id-long", _with((b"postroom-id", b"i" * 5_000))),
    Odd("type-bytes", RawRecord(headers=[(b"postroom-type", b"\xff\xfe")]), "no handler"),
    Odd("type-nul", RawRecord(headers=[(b"postroom-type", b"a\x00b")]), "no handler"),
    Odd("type-long", RawRecord(headers=[(b"postroom-type", b"t" * 5_000)]), "no handler"),
    Odd("no-headers", RawRecord(), "no handler"),
    Odd("content-type-bytes", _with((b"content-type", b"\xff/\xfe"))),
    Odd(
        "kseq-huge",
        _with((b"postroom-kseq", b"9" * 18), (b"postroom-outbox", b"\xff")),
        "larger than the maximum",
    ),
    Odd("occurred-at-year-9999", _with((b"postroom-occurred-at", b"9999-12-31T23:59:59+00:00"))),
    Odd("occurred-at-infinity", _with((b"postroom-occurred-at", b"infinity"))),
    Odd("causation-deep", _with((b"postroom-causation-path", b"[" * 100_000))),
    Odd("key-null", RawRecord(key=None, headers=[TYPE])),
    Odd("key-empty", RawRecord(key=b"", headers=[TYPE])),
    Odd("key-bytes", RawRecord(key=b"\xff\xfe\x00", headers=[TYPE])),
    Odd("key-long", RawRecord(key=b"k" * 100_000, headers=[TYPE])),
    Odd("body-null", _with(value=None)),
    Odd("body-empty", _with(value=b"")),
    Odd("body-bytes", _with(value=bytes(range(256)))),
    Odd("body-deep", _with(value=b"[" * 100_000)),
    Odd("body-huge", _with(value=b"x" * 900_000)),
    Odd("timestamp-none", RawRecord(headers=[TYPE], timestamp_ms=-1)),
    Odd("timestamp-epoch", RawRecord(headers=[TYPE], timestamp_ms=0)),
    Odd("timestamp-far-future", RawRecord(headers=[TYPE], timestamp_ms=253_402_300_800_000)),
]  # fmt: skip
