"""A stream reader between RabbitMQ and aiormq: keeps invalid properties from pamqp's decoder.

The routing key and the properties of a delivery are decoded here, leniently, and aiormq receives
the same message without them. Text in RabbitMQ's own methods that is not UTF-8, such as an error
truncated in the middle of a character, is repaired. Everything else passes unchanged.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

from postroom.brokers.rabbitmq.content_header import Content, read_content

_HEAD = Struct(">BHI")  # type, channel, size of the payload
_END = b"\xce"
_METHOD, _HEADER = 1, 2
_TYPES = (1, 2, 3, 8)
_CHUNK = 2**16

_DELIVER = bytes.fromhex("003c003c")
_RETURN = bytes.fromhex("003c0032")
_TEXTS = {  # method: bytes before its first short string, number of short strings
    _RETURN: (6, 3),
    bytes.fromhex("000a0032"): (6, 1),  # connection.close
    bytes.fromhex("000a003c"): (4, 1),  # connection.blocked
    bytes.fromhex("00140028"): (6, 1),  # channel.close
}
_NO_NAMES = b"\x00\x00"  # an empty exchange, an empty routing key
_NO_PROPERTIES = b"\x00\x00"
_ONLY_MESSAGE_ID = b"\x00\x80"
_BEFORE_FLAGS = 12
_TAG = Struct(">Q")
_NOT_ASCII = bytes(range(128)) + b"?" * 128


class _Announced(NamedTuple):
    """A content header follows on this channel. Without a delivery it belongs to a return."""

    delivery: tuple[str, int] | None
    routing_key: bytes = b""


class TolerantReader(asyncio.StreamReader):
    """Reads frames from another reader; aiormq calls `readexactly` and `at_eof`."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__()
        self._source = reader
        self._raw = bytearray()
        self._clean = b""
        self._at = 0
        self._frames = True
        self._announced: dict[int, _Announced] = {}
        self._contents: dict[tuple[str, int], Content] = {}

    def content_of(self, consumer_tag: str, delivery_tag: int) -> Content | None:
        """Return the content taken from a delivery, once."""
        return self._contents.pop((consumer_tag, delivery_tag), None)

    # -- called by aiormq --------------------------------------------------------------------
    def at_eof(self) -> bool:
        return self._at >= len(self._clean) and not self._raw and self._source.at_eof()

    async def readexactly(self, n: int) -> bytes:
        while len(self._clean) - self._at < n:
            chunk = await self._source.read(_CHUNK)
            if not chunk:
                left, self._clean, self._at = self._clean[self._at :], b"", 0
                raise asyncio.IncompleteReadError(left, n)
            self._clean = self._clean[self._at :] + self._pass(chunk)
            self._at = 0
        start, self._at = self._at, self._at + n
        return self._clean[start : self._at]

    async def read(self, n: int = -1) -> bytes:
        left, self._clean, self._at = self._clean[self._at :], b"", 0
        return left or await self._source.read(n)

    # -- frames -------------------------------------------------------------------------------
    def _pass(self, chunk: bytes) -> bytes:
        """Accept bytes as they arrive; return all whole frames in the form for aiormq."""
        raw = self._raw
        raw += chunk
        at, frames = 0, []
        while self._frames and len(raw) - at >= _HEAD.size:
            kind, channel, size = _HEAD.unpack_from(raw, at)
            # not a frame, but an answer in another protocol: aiormq reports it
            if kind not in _TYPES:
                self._frames = False
                break
            end = at + _HEAD.size + size + 1
            if end > len(raw):
                break
            frames.append(self._frame(kind, channel, bytes(raw[at:end])))
            at = end
        if not self._frames:
            frames.append(bytes(raw[at:]))
            at = len(raw)
        del raw[:at]
        return b"".join(frames)

    def _frame(self, kind: int, channel: int, frame: bytes) -> bytes:
        payload = frame[_HEAD.size : -1]
        try:
            if kind == _METHOD:
                changed = self._method(channel, payload)
            elif kind == _HEADER:
                changed = self._header(channel, payload)
            else:
                return frame
        except (IndexError, StructError):  # malformed: aiormq reports it
            return frame
        if changed is payload:
            return frame
        return _HEAD.pack(kind, channel, len(changed)) + changed + _END

    def _method(self, channel: int, payload: bytes) -> bytes:
        method = payload[:4]
        if method == _DELIVER:
            tag_end = 5 + payload[4]
            (number,) = _TAG.unpack_from(payload, tag_end)
            exchange = tag_end + _TAG.size + 1  # after `redelivered`
            key = exchange + 1 + payload[exchange]
            key_end = key + 1 + payload[key]
            consumer_tag = payload[5:tag_end].decode(errors="replace")
            self._announced[channel] = _Announced(
                (consumer_tag, number), payload[key + 1 : key_end]
            )
            return payload[:exchange] + _NO_NAMES
        if method == _RETURN:
            self._announced[channel] = _Announced(None)
        texts = _TEXTS.get(method)
        return payload if texts is None else _with_text(payload, *texts)

    def _header(self, channel: int, payload: bytes) -> bytes:
        announced = self._announced.pop(channel, None)
        if announced is None:
            return payload
        content = read_content(announced.routing_key, payload)
        before = payload[:_BEFORE_FLAGS]
        if announced.delivery is not None:
            self._contents[announced.delivery] = content
            return before + _NO_PROPERTIES
        message_id = (content.message_id or "").encode()
        if not 0 < len(message_id) < 256:
            return before + _NO_PROPERTIES
        return before + _ONLY_MESSAGE_ID + bytes((len(message_id),)) + message_id


def _with_text(payload: bytes, at: int, count: int) -> bytes:
    """Return a method whose short strings are text: bytes that are not UTF-8 are removed."""
    parts = [payload[:at]]
    for _ in range(count):
        start, end = at + 1, at + 1 + payload[at]
        text = payload[start:end]
        try:
            text.decode()
        except UnicodeDecodeError:
            text = text.translate(_NOT_ASCII)
        parts += (payload[at:start], text)
        at = end
    return b"".join((*parts, payload[at:]))
