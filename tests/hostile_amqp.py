"""Content headers as RabbitMQ takes them from senders, and as pamqp refuses to decode them."""

from __future__ import annotations

import struct
from random import Random
from typing import NamedTuple

from tests.servers.amqp_wire import instant, nested, properties, short, table, text

LATIN = b"caf\xe9"
MICROSECONDS = 1_700_000_000_000_000  # where seconds are meant: the year 55840
KINDS = "bBsuIilLfdDSxtTVFA"


class Case(NamedTuple):
    """A message: its property list, and what becomes of it."""

    name: str
    listed: bytes
    problem: str  # empty: it is handled
    routing_key: bytes
    seen: dict[str, str]  # headers that a handler sees


def case(name, problem="", *, routing_key=b"", seen=None, **given):
    """A persistent JSON event with an id of its own, unless that is what is wrong with it."""
    given.setdefault("message_id", short(f"hostile-{name}".encode()))
    given.setdefault("type", short(b"order.created"))
    given.setdefault("content_type", short(b"application/json"))
    given["delivery_mode"] = b"\x02"
    return Case(name, properties(**given), problem, routing_key, seen or {})


# R-C2, X-C1: pamqp refuses each of these.
HOSTILE = [
    case("message-id", "the message id is not UTF-8: 'caf\\\\xe9'", message_id=short(LATIN)),
    case("type", "the type is not UTF-8: 'caf\\\\xe9'", type=short(LATIN)),
    case("content-type", "the content type is not UTF-8: 'caf\\\\xe9'", content_type=short(LATIN)),
    case("correlation", "the correlation id is not UTF-8: 'caf\\\\xe9'",
         correlation_id=short(LATIN)),
    case("routing-key", "the routing key is not UTF-8: 'caf\\\\xe9'", routing_key=LATIN),
    case("header-name", "the name of a header is not UTF-8: 'caf\\\\xe9'",
         seen={"caf\\xe9": "1", "b": "2"},
         headers=table((LATIN, text(b"1")), (b"b", text(b"2")))),
    case("reply-to", reply_to=short(LATIN)),
    case("app-id", app_id=short(LATIN)),
    case("encoding", content_encoding=short(LATIN)),
    case("timestamp", timestamp=instant(MICROSECONDS)[1:]),
    case("timestamp-max", timestamp=instant(2**64 - 1)[1:]),
    case("header-time", seen={"at": str(MICROSECONDS)},
         headers=table((b"at", instant(MICROSECONDS)))),
    case("deep-tables", seen={"b": "2"},
         headers=table((b"deep", nested(1_000)), (b"b", text(b"2")))),
    case("deep-arrays", seen={"b": "2"},
         headers=table((b"deep", nested(1_000, b"A")), (b"b", text(b"2")))),
]  # fmt: skip


def fuzzed(seed):
    """Random properties, with lengths that fit together, so that RabbitMQ takes most of them."""
    random = Random(seed)

    def some(most=12):
        data = random.randbytes(random.randrange(most))
        return data if random.random() < 0.2 else bytes(0x20 + byte % 0x5F for byte in data)

    def value(depth=0):
        kind = random.choice(KINDS)
        form = {"b": 1, "B": 1, "t": 1, "s": 2, "u": 2, "I": 4, "i": 4, "f": 4, "D": 5, "V": 0}
        if kind in "FA" and depth > 3:
            return b"V"
        if kind == "F":
            return b"F" + table(*((some(), value(depth + 1)) for _ in range(random.randrange(4))))
        if kind == "A":
            data = b"".join(value(depth + 1) for _ in range(random.randrange(4)))
            return b"A" + struct.pack(">I", len(data)) + data
        if kind in "Sx":
            data = some(40)
            return kind.encode() + struct.pack(">I", len(data)) + data
        return kind.encode() + random.randbytes(form.get(kind, 8))

    given = {"message_id": short(f"fuzz-{seed}-".encode() + some())}
    for name in ("type", "content_type", "correlation_id", "reply_to", "app_id"):
        if random.random() < 0.6:
            given[name] = short(some())
    if random.random() < 0.8:
        given["headers"] = table(*((some(), value()) for _ in range(random.randrange(6))))
    if random.random() < 0.5:
        given["timestamp"] = random.randbytes(8)
    return properties(**given)
