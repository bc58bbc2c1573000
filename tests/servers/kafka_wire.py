"""A sender to Kafka that sends what no client library lets through: the protocol by hand.

Produce version 7 with record batches of format 2. Nothing is checked on the way out: names that are
not UTF-8, missing values, any timestamp, a compressed batch of any size.
"""

from __future__ import annotations

import gzip
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.servers.process import wait_until

_PRODUCE, _VERSION = 0, 7
_GZIP = 1
_NOT_YET = (3, 5, 6)  # unknown topic or partition, no leader, another leader


@dataclass(frozen=True)
class RawRecord:
    """One record, byte for byte; None is Kafka's null."""

    value: bytes | None = b"{}"
    key: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = field(default_factory=tuple)
    timestamp_ms: int | None = None


def send_raw(
    address: str, topic: str, records: Sequence[RawRecord], *, partition: int = 0, gzipped: int = 0
) -> None:
    """Send records as one batch and wait for the answer; `gzipped` is a level of compression."""
    batch = encode_batch(records, gzipped=gzipped)
    wait_until(
        lambda: send_once(address, topic, partition, batch), within=30, what="a leader to send to"
    )


def send_once(address: str, topic: str, partition: int, batch: bytes) -> bool:
    """Send a batch; False if the partition has no leader here yet."""
    host, _, port = address.partition(":")
    body = struct.pack(">hhi", -1, -1, 10_000)  # no transaction, acks=all, its timeout
    body += struct.pack(">i", 1) + _string(topic.encode())
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    head = struct.pack(">hhi", _PRODUCE, _VERSION, 1) + _string(b"raw")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        answer = _exactly(line, struct.unpack(">i", _exactly(line, 4))[0])
    place = 4 + 4 + 2 + len(topic.encode()) + 4 + 4  # correlation, topics, name, partitions, index
    (error,) = struct.unpack_from(">h", answer, place)
    if error and error not in _NOT_YET:
        raise ValueError(f"Kafka refused a batch: error {error}")
    return not error


def encode_batch(records: Sequence[RawRecord], *, gzipped: int = 0) -> bytes:
    """Return a record batch of format 2."""
    now = round(time.time() * 1_000)
    stamps = [now if r.timestamp_ms is None else r.timestamp_ms for r in records]
    first = stamps[0]
    encoded = b"".join(_record(r, i, stamps[i] - first) for i, r in enumerate(records))
    if gzipped:
        encoded = gzip.compress(encoded, gzipped)
    after_crc = struct.pack(
        ">hiqqqhii", _GZIP if gzipped else 0, len(records) - 1, first, max(stamps), -1, -1, -1,
        len(records),
    ) + encoded  # fmt: skip
    after_length = struct.pack(">ibI", 0, 2, crc32c(after_crc)) + after_crc
    return struct.pack(">qi", 0, len(after_length)) + after_length


def crc32c(data: bytes) -> int:
    """Return the Castagnoli checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _record(record: RawRecord, delta: int, later_ms: int) -> bytes:
    parts = [b"\x00", _varint(later_ms), _varint(delta), _bytes(record.key), _bytes(record.value)]
    parts.append(_varint(len(record.headers)))
    for name, value in record.headers:
        parts += [_bytes(name), _bytes(value)]
    body = b"".join(parts)
    return _varint(len(body)) + body


def _bytes(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def _exactly(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = line.recv(size - len(found))
        if not more:
            raise ConnectionError("Kafka closed the connection")
        found += more
    return found


def _entry(number: int) -> int:
    for _ in range(8):
        number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
    return number


_TABLE = [_entry(n) for n in range(256)]
