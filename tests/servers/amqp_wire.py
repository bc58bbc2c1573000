"""Sends to RabbitMQ by raw frames: what no client library would send, and other languages do."""

from __future__ import annotations

import asyncio
import struct
from urllib.parse import urlsplit

from pamqp import commands, frame, header

BITS = {
    "content_type": 15, "content_encoding": 14, "headers": 13, "delivery_mode": 12, "priority": 11,
    "correlation_id": 10, "reply_to": 9, "expiration": 8, "message_id": 7, "timestamp": 6,
    "type": 5, "user_id": 4, "app_id": 3, "cluster_id": 2,
}  # fmt: skip


class RefusedError(Exception):
    """RabbitMQ itself does not take it, and hung up."""


def short(data):
    return bytes((len(data),)) + data


def table(*entries):
    """A table of (name, type and value), both as bytes."""
    data = b"".join(short(name) + value for name, value in entries)
    return struct.pack(">I", len(data)) + data


def text(data):
    return b"S" + struct.pack(">I", len(data)) + data


def instant(number):
    return b"T" + struct.pack(">Q", number)


def nested(depth, kind=b"F"):
    """A value of tables, or of arrays, one inside the other."""
    value = b"V"
    for _ in range(depth):
        inner = (short(b"t") if kind == b"F" else b"") + value
        value = kind + struct.pack(">I", len(inner)) + inner
    return value


def properties(**given):
    """The property list of a content header: flags, then the properties as bytes, in order."""
    flags = sum(1 << BITS[name] for name in given)
    parts = [given[name] for name in sorted(given, key=BITS.__getitem__, reverse=True)]
    return struct.pack(">H", flags) + b"".join(parts)


def content_header(listed, size):
    return struct.pack(">HHQ", 60, 0, size) + listed


def a_frame(kind, channel, payload):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


class RawSender:
    """A connection with one channel in confirm mode."""

    def __init__(self, url):
        self._url = urlsplit(url)

    async def __aenter__(self):
        await self._open()
        return self

    async def __aexit__(self, *_):
        self._writer.close()
        await self._writer.wait_closed()

    async def _open(self):
        host, port = self._url.hostname, self._url.port
        self._reader, self._writer = await asyncio.open_connection(host, port)
        self._writer.write(header.ProtocolHeader().marshal())
        await self._answer(commands.Connection.Start)
        login = f"\0{self._url.username}\0{self._url.password}"
        self._say(commands.Connection.StartOk({}, "PLAIN", login, "en_US"), 0)
        tune = await self._answer(commands.Connection.Tune)
        self._say(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), 0)
        self._say(commands.Connection.Open("/"), 0)
        await self._answer(commands.Connection.OpenOk)
        self._say(commands.Channel.Open())
        await self._answer(commands.Channel.OpenOk)
        self._say(commands.Confirm.Select())
        await self._answer(commands.Confirm.SelectOk)

    async def publish(self, queue, listed, body=b"{}", *, exchange=b""):
        """Send one message and wait for the confirm; `queue` and `listed` are bytes.

        Raises RefusedError if RabbitMQ hangs up; the next message goes by a new connection.
        """
        publish = struct.pack(">HHH", 60, 40, 0) + short(exchange) + short(queue) + b"\0"
        self._writer.write(a_frame(1, 1, publish))
        self._writer.write(a_frame(2, 1, content_header(listed, len(body))))
        self._writer.write(a_frame(3, 1, body))
        try:
            await self._answer(commands.Basic.Ack)
        except (AssertionError, OSError, EOFError) as error:
            await self.__aexit__()
            await self._open()
            raise RefusedError from error

    def _say(self, method, channel=1):
        self._writer.write(frame.marshal(method, channel))

    async def _answer(self, expected):
        async with asyncio.timeout(30):
            head = await self._reader.readexactly(7)
            (size,) = struct.unpack(">I", head[3:])
            rest = await self._reader.readexactly(size + 1)
        _, _, answer = frame.unmarshal(head + rest)
        assert isinstance(answer, expected), answer
        return answer
