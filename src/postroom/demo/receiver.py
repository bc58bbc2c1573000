"""The receiver: another service with its own database.

For each message, one transaction records the arrival, asks the inbox whether the message is new,
and if so changes the order. The ack is sent after the commit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from postroom.demo.wire import MAX_LINE_BYTES, Message, unpack
from postroom.inbox import SyncInbox

TABLES = """
CREATE TABLE arrivals (
    n INTEGER PRIMARY KEY, event_id TEXT NOT NULL, order_id TEXT NOT NULL, relay TEXT NOT NULL);
CREATE TABLE effects (n INTEGER PRIMARY KEY, event_id TEXT NOT NULL, order_id TEXT NOT NULL);
CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT NOT NULL);
"""
_REPORT_SECONDS = 0.1

log = logging.getLogger(__name__)

Take = Callable[[Message, str], None]


class Books:
    """Arrivals and effects in receiver.db."""

    def __init__(self, path: Path) -> None:
        self._conn = sqlite3.connect(path, timeout=15.0, isolation_level=None)
        self._conn.execute("PRAGMA synchronous = NORMAL")  # as in the shop
        self._conn.executescript(TABLES)
        self._inbox = SyncInbox("receiver")
        self.arrived = 0
        self.applied = 0

    def take(self, message: Message, relay: str) -> None:
        """Record the arrival of a message, and apply the message if it is new."""
        conn = self._conn
        order, status = message.key, json.loads(message.payload)["status"]
        conn.execute("BEGIN IMMEDIATE")
        try:
            conn.execute(
                "INSERT INTO arrivals (event_id, order_id, relay) VALUES (?, ?, ?)",
                (message.id, order, relay),
            )
            is_new = self._inbox.accept(conn, message)
            if is_new:
                conn.execute(
                    "INSERT INTO effects (event_id, order_id) VALUES (?, ?)", (message.id, order)
                )
                conn.execute(
                    "INSERT INTO orders VALUES (?, ?) "
                    "ON CONFLICT (id) DO UPDATE SET status = excluded.status",
                    (order, status),
                )
            conn.execute("COMMIT")
        except BaseException:
            if conn.in_transaction:
                conn.execute("ROLLBACK")
            raise
        self.arrived += 1
        self.applied += is_new

    def close(self) -> None:
        self._conn.close()


class Server:
    """Receives messages from relays, one per line.

    After `hold`, acks are withheld, as if they were in transit. From `limit` messages on the server
    also stops reading, and disconnects on `release`: messages in transit are then lost.
    """

    def __init__(self, take: Take, on_change: Callable[[], None] = lambda: None) -> None:
        self._take = take
        self._on_change = on_change
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._kept: list[tuple[asyncio.StreamWriter, int]] = []
        self._hold_limit: int | None = None
        self._released = asyncio.Event()
        self._released.set()
        self.relay = ""

    @property
    def unacked(self) -> int:
        return len(self._kept)

    async def start(self, port: int = 0) -> int:
        """Listen on 127.0.0.1; returns the port."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", port, limit=MAX_LINE_BYTES
        )
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Close all connections."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    def hold(self, limit: int | None = None) -> None:
        """Withhold acks until `release`."""
        self._released.clear()
        self._hold_limit = limit

    def release(self) -> None:
        """Send the withheld acks; those of dead relays are dropped."""
        self._released.set()
        self._hold_limit = None
        kept, self._kept = self._kept, []
        for writer, n in kept:
            _ack(writer, n)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            hello = await reader.readline()
            if not hello:
                return
            relay = str(json.loads(hello)["hello"])
            self.relay = relay
            writer.write(b'{"ready": true}\n')
            self._on_change()
            while (line := await reader.readline()).endswith(b"\n"):
                message = unpack(line)
                self._take(message, relay)
                if self._released.is_set():
                    _ack(writer, message.n)
                    await writer.drain()
                else:
                    self._kept.append((writer, message.n))
                self._on_change()
                if self._hold_limit is not None and self.unacked >= self._hold_limit:
                    await self._released.wait()
                    return
                await asyncio.sleep(0)  # let other connections run, however much is buffered
        except OSError:
            pass  # the relay disconnected
        except Exception:
            log.exception("cannot handle a message; closing the connection")
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


def _ack(writer: asyncio.StreamWriter, n: int) -> None:
    if not writer.transport.is_closing():
        writer.write(b'{"ack": %d}\n' % n)


class Clerk:
    """The receiver as a process: reports to the stage and follows its commands."""

    def __init__(self, path: Path, hold_after: int, hold_limit: int) -> None:
        self._books = Books(path)
        self._server = Server(self._books.take, self._changed)
        self._hold_after: int | None = hold_after
        self._hold_limit = hold_limit
        self._told: dict[str, object] = {}
        self._closing = asyncio.Event()

    async def run(self) -> None:
        port = await self._server.start()
        self._tell({"port": port})
        while not self._closing.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_REPORT_SECONDS):
                    await self._closing.wait()
            self._report()
        self._server.stop()
        self._books.close()

    def obey(self, command: str) -> None:
        if command == "release":
            self._hold_after = None
            self._server.release()
        elif command == "close":
            self._closing.set()

    def _changed(self) -> None:
        if self._hold_after is not None and self._books.applied >= self._hold_after:
            self._server.hold(self._hold_limit)
            self._report()

    def _report(self) -> None:
        facts: dict[str, object] = {
            "arrived": self._books.arrived,
            "applied": self._books.applied,
            "unacked": self._server.unacked,
            "relay": self._server.relay,
        }
        if facts != self._told:
            self._told = facts
            self._tell(facts)

    def _tell(self, facts: dict[str, object]) -> None:
        with suppress(BrokenPipeError):
            sys.stdout.write(json.dumps(facts) + "\n")
            sys.stdout.flush()
