"""A destination over TCP: an example of a broker for postroom in one file.

The protocol has one JSON line per message, and one line back once the message is stored durably:

    → {"hello": "relay one"}                    ← {"ready": true}
    → {"n": 1, "id": "…", "key": "order-1", …}  ← {"ack": 1}

Messages are pipelined. The receiver handles the messages of a connection one after another and
disconnects at the first failure: later messages of a key never take effect before a failed one.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Self

from postroom.broker import (
    CONFIRMED,
    UNSENT,
    Broker,
    BrokerCapabilities,
    Outcome,
    Reporter,
    Verdict,
)
from postroom.record import Record

CONNECT_SECONDS = 5.0
MAX_LINE_BYTES = 8_000_000


class Message(NamedTuple):
    """A record on the wire: the attributes that the receiver's inbox needs, and the payload."""

    n: int
    id: str
    type: str
    topic: str
    key: str | None
    correlation_id: str | None
    payload: bytes


def pack(n: int, record: Record) -> bytes:
    """Return the line of a record: a text payload as text, other payloads in base64."""
    facts: dict[str, Any] = {
        "n": n,
        "id": record.id,
        "type": record.type,
        "topic": record.topic,
        "key": record.key,
        "correlation_id": record.correlation_id,
    }
    try:
        facts["text"] = record.payload.decode()
    except UnicodeDecodeError:
        facts["base64"] = base64.b64encode(record.payload).decode()
    return _line(facts)


def unpack(line: bytes) -> Message:
    """Return the message of a line."""
    facts = json.loads(line)
    text = facts.pop("text", None)
    payload = text.encode() if text is not None else base64.b64decode(facts.pop("base64"))
    return Message(payload=payload, **facts)


def _line(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts).encode() + b"\n"


@dataclass(eq=False)
class Delivery:
    """One call of `publish`, with its unacknowledged records."""

    reporter: Reporter
    records: dict[int, Record]
    answered: asyncio.Event = field(default_factory=asyncio.Event)


class Link:
    """A connection: sends messages and receives acks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = count(1)
        self._deliveries: dict[int, Delivery] = {}
        self.broken = False
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def connect(cls, host: str, port: int, name: str) -> Self:
        """Connect and wait for the receiver's greeting. Raises OSError."""
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(_line({"hello": name}))
                if not await reader.readline():
                    raise ConnectionError("the receiver disconnected")
            except BaseException:
                writer.transport.abort()
                raise
        return cls(reader, writer)

    def post(self, batch: Sequence[Record], reporter: Reporter) -> Delivery:
        """Send messages without waiting. Raises ConnectionError if nothing can have been sent."""
        if self.broken:
            raise ConnectionError("the connection is broken")
        delivery = Delivery(reporter, {next(self._numbers): record for record in batch})
        self._deliveries.update(dict.fromkeys(delivery.records, delivery))
        self._writer.write(b"".join(pack(n, record) for n, record in delivery.records.items()))
        return delivery

    async def wait(self, delivery: Delivery) -> None:
        """Wait until each message is acked, or the connection breaks."""
        try:
            with suppress(
                ConnectionError
            ):  # the listener gets the same error and reports the outcomes
                await self._writer.drain()
            await delivery.answered.wait()
        finally:
            if delivery.records:  # abandoned: a late ack must not count for a later attempt
                for n in delivery.records:
                    self._deliveries.pop(n, None)
                self.abort()

    async def _listen(self) -> None:
        error = "the receiver disconnected before it answered"
        try:
            while line := await self._reader.readline():
                self._acked(json.loads(line)["ack"])
        except (OSError, ValueError, KeyError) as problem:
            error = f"the connection broke before the answer: {problem}"
        finally:
            self.broken = True
            self._writer.transport.abort()
            # They were written to the connection; their outcome is unknown.
            unknown = Outcome(Verdict.UNKNOWN, error)
            for delivery in dict.fromkeys(self._deliveries.values()):
                for record in delivery.records.values():
                    delivery.reporter.report(record, unknown)
                delivery.records.clear()
                delivery.answered.set()
            self._deliveries.clear()

    def _acked(self, n: int) -> None:
        delivery = self._deliveries.pop(n, None)
        if delivery is None:
            return
        delivery.reporter.report(delivery.records.pop(n), CONFIRMED)
        if not delivery.records:
            delivery.answered.set()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        self.abort()
        self._listening.cancel()
        await asyncio.wait({self._listening})


class WireBroker(Broker):
    """Sends records to a receiver at `host:port`; `name` identifies the relay there."""

    capabilities = BrokerCapabilities()

    def __init__(self, host: str, port: int, name: str = "relay") -> None:
        self._host = host
        self._port = port
        self._name = name
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def open(self) -> None:
        self._closed = False
        with suppress(OSError):  # unreachable: `publish` reports the outage and reconnects
            await self._connected()

    async def close(self) -> None:
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def health(self) -> None:
        link = await self._connect()
        await link.close()

    async def publish(self, batch: Sequence[Record], reporter: Reporter) -> None:
        if not batch:
            return
        try:
            link = await self._connected()
            delivery = link.post(batch, reporter)
        except OSError as error:
            _report_outage(batch, reporter, error)
        else:
            await link.wait(delivery)

    async def publish_alone(self, record: Record, reporter: Reporter) -> None:
        """Send a suspect on a separate connection, so that a failure affects no other record."""
        try:
            link = await self._connect()
        except OSError as error:
            _report_outage([record], reporter, error)
            return
        try:
            await link.wait(link.post([record], reporter))
        finally:
            await link.close()

    async def _connected(self) -> Link:
        async with self._connecting:
            if self._link is None or self._link.broken:
                self._link = await self._connect()
            return self._link

    async def _connect(self) -> Link:
        if self._closed:
            raise ConnectionError("the broker is closed")
        return await Link.connect(self._host, self._port, self._name)


def _report_outage(batch: Sequence[Record], reporter: Reporter, error: OSError) -> None:
    """Report that nothing was sent: an outage for the first record of each key, UNSENT for the
    others.
    """
    outage = Outcome(Verdict.OUTAGE, f"no receiver: {error or type(error).__name__}")
    told: set[bytes] = set()
    for record in batch:
        reporter.report(record, UNSENT if record.key_hash in told else outage)
        told.add(record.key_hash)
