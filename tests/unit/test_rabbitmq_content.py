"""Messages that pamqp cannot decode, at the reader between RabbitMQ and aiormq."""

from __future__ import annotations

import asyncio
import struct
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.exceptions import PAMQPException
from pamqp.header import ContentHeader

from postroom.brokers.rabbitmq.content_header import Content, read_content
from postroom.brokers.rabbitmq.tolerant_reader import TolerantReader
from postroom.sources.rabbitmq.message import incoming, to_text
from tests.hostile_amqp import HOSTILE, LATIN, fuzzed
from tests.servers.amqp_wire import (
    a_frame,
    content_header,
    instant,
    nested,
    properties,
    short,
    table,
    text,
)

BODY = b'{"n": 1}'
HEADERS = st.dictionaries(
    st.text(max_size=20).filter(lambda name: len(name.encode()) <= 128),
    st.one_of(
        st.text(max_size=50),
        st.integers(-(2**63), 2**63 - 1),
        st.booleans(),
        st.floats(allow_nan=False, width=32),
        st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(
            lambda at: at.replace(microsecond=0)
        ),
        st.none(),
        st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
        st.lists(st.text(max_size=5), max_size=2),
        st.binary(max_size=20).map(bytearray),
    ),
    max_size=6,
)


def decoded(listed, routing_key=b"orders"):
    return read_content(routing_key, content_header(listed, len(BODY)))


def delivery(listed, number=1, routing_key=b"orders", consumer_tag=b"ctag", channel=1):
    """The frames of one delivery, as RabbitMQ sends them."""
    method = struct.pack(">HH", 60, 60) + short(consumer_tag) + struct.pack(">QB", number, 0)
    return (
        a_frame(1, channel, method + short(b"ex\xff") + short(routing_key))
        + a_frame(2, channel, content_header(listed, len(BODY)))
        + a_frame(3, channel, BODY)
    )


async def read_all(reader, most=1_000):
    """Read all frames as aiormq does."""
    found = []
    while not reader.at_eof() and len(found) < most:
        head = await reader.readexactly(1) + await reader.readexactly(6)
        (size,) = struct.unpack(">I", head[3:])
        found.append(frame.unmarshal(head + await reader.readexactly(size + 1))[2])
    return found


def reading(*chunks):
    source = asyncio.StreamReader()
    for chunk in chunks:
        source.feed_data(chunk)
    source.feed_eof()
    return TolerantReader(source)


# -- the decoder ------------------------------------------------------------------------------
@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.name)
def test_what_pamqp_refuses_is_read(case):  # R-C2, X-C1
    content = decoded(case.listed, case.routing_key)
    assert content.problem == case.problem
    assert dict(content.headers) == case.seen
    message = incoming(content, BODY)
    assert message.problem == case.problem
    assert message.headers["postroom-id"] in (f"hostile-{case.name}", "caf\\xe9")


@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.name)
def test_pamqp_does_refuse_it(case):
    """When it no longer does, this module may have become needless."""
    whole = delivery(case.listed, routing_key=case.routing_key)
    head_end = 8 + struct.unpack(">I", whole[3:7])[0]
    with pytest.raises((PAMQPException, RecursionError, ValueError)):
        for part in (whole[:head_end], whole[head_end:]):
            frame.unmarshal(part)


@given(
    HEADERS,
    st.text(max_size=40),
    st.text(max_size=40),
    st.text(max_size=40),
    st.none() | st.text(max_size=40),
)
def test_what_pamqp_decodes_is_the_same(headers, message_id, kind, routing_key, correlation_id):
    written = commands.Basic.Properties(
        headers=headers, message_id=message_id, message_type=kind, content_type="text/plain",
        correlation_id=correlation_id, delivery_mode=2, priority=3,
        timestamp=datetime(2026, 1, 2, tzinfo=UTC), app_id="é", reply_to="you", expiration="60000",
    )  # fmt: skip
    payload = ContentHeader(body_size=len(BODY), properties=written).marshal()
    theirs = ContentHeader()
    theirs.unmarshal(payload)
    ours = read_content(routing_key.encode(), payload)
    assert ours.problem == ""
    assert ours.routing_key == routing_key
    assert dict(ours.headers) == to_text(theirs.properties.headers or {})
    assert ours.message_id == (message_id or None)
    assert ours.type == (kind or None)
    assert ours.correlation_id == (correlation_id or None)
    assert ours.content_type == "text/plain"


@given(st.binary(max_size=300), st.binary(max_size=20))
def test_no_bytes_at_all_make_it_raise(payload, routing_key):
    content = read_content(routing_key, payload)
    assert content.routing_key.encode().decode() == content.routing_key


@given(st.integers(0, 10_000), st.data())
def test_a_header_that_is_cut_off_is_said_to_be(seed, data):
    whole = content_header(fuzzed(seed), 0)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert "the properties are malformed" in read_content(b"", cut).problem


def test_lengths_that_lie():
    lying = struct.pack(">I", 2**32 - 1)
    for listed in (
        properties(headers=lying + short(b"a") + text(b"x")),
        properties(headers=table((b"a", b"S" + lying))),
        properties(headers=table((b"a", b"F" + lying))),
        properties(headers=table((b"a", b"?"))),
        properties(message_id=b"\xffabc"),
        b"\xff\xff" * 50,
    ):
        assert decoded(listed).problem == "the properties are malformed"


def test_only_the_first_problems_are_told():
    names = table(*((bytes((0x80 + n,)), text(b"")) for n in range(40)))
    told = decoded(properties(headers=names)).problem
    assert told.count("the name of a header") == 5
    assert told.endswith("; and 35 more")


def test_sixty_thousand_headers_are_read_in_one_pass():
    entries = table(*((b"", b"V") for _ in range(60_000)), (b"last", text(b"one")))
    assert dict(decoded(properties(headers=entries)).headers) == {"last": "one"}


def test_what_stands_beside_a_nested_table_is_kept():
    headers = table((b"a", instant(0)), (b"deep", nested(5_000)), (b"n", b"l" + b"\xff" * 8))
    found = dict(decoded(properties(headers=headers)).headers)
    assert found == {"a": "1970-01-01T00:00:00+00:00", "n": "-1"}


# -- the reader -------------------------------------------------------------------------------
async def test_aiormq_sees_deliveries_without_what_senders_wrote():
    reader = reading(
        *(delivery(c.listed, n, c.routing_key) for n, c in enumerate(HOSTILE, 1)),
    )
    frames = await read_all(reader)
    assert len(frames) == 3 * len(HOSTILE)
    for number, case in enumerate(HOSTILE, 1):
        deliver, head, body = frames[3 * number - 3 : 3 * number]
        assert (deliver.consumer_tag, deliver.delivery_tag) == ("ctag", number)
        assert (deliver.exchange, deliver.routing_key, deliver.redelivered) == ("", "", False)
        assert (head.body_size, body.value) == (len(BODY), BODY)
        assert head.properties == commands.Basic.Properties()
        content = reader.content_of("ctag", number)
        assert (content.problem, dict(content.headers)) == (case.problem, case.seen)
        assert reader.content_of("ctag", number) is None


@given(st.lists(st.integers(1, 400), max_size=30))
def test_frames_may_arrive_in_any_pieces(sizes):
    whole = b"".join(
        delivery(case.listed, number, channel=1 + number % 2)
        for number, case in enumerate(HOSTILE[:8], 1)
    )
    pieces, at = [], 0
    for size in sizes:
        pieces.append(whole[at : at + size])
        at += size
    pieces.append(whole[at:])

    async def run():
        source = asyncio.StreamReader()
        reader = TolerantReader(source)
        task = asyncio.create_task(read_all(reader, most=24))
        for piece in pieces:
            source.feed_data(piece)
            await asyncio.sleep(0)
        source.feed_eof()
        return await task, reader

    frames, reader = asyncio.run(run())
    assert len(frames) == 24
    assert all(reader.content_of("ctag", number) for number in range(1, 9))


async def test_everything_else_passes_unchanged():
    methods = [
        commands.Basic.Ack(7, multiple=True),
        commands.Basic.ConsumeOk("ctag"),
        commands.Channel.Close(404, "NOT_FOUND - é", 60, 40),
        commands.Connection.Blocked("low on memory"),
        commands.Queue.DeclareOk("q", 1, 2),
    ]
    sent = b"".join(frame.marshal(method, 1) for method in methods) + a_frame(8, 0, b"")
    reader = reading(sent)
    assert await reader.readexactly(len(sent)) == sent
    assert reader.at_eof()


def in_the_middle(number):
    """An error of RabbitMQ that is cut in the middle of a character."""
    return ("NOT_FOUND - no queue '" + "é" * number).encode()[:-1]


async def test_an_error_that_was_cut_in_a_character_is_still_an_error():
    """RabbitMQ cuts a text at 255 bytes; pamqp would end the connection over it."""
    close = struct.pack(">HHH", 20, 40, 404) + short(in_the_middle(100)) + struct.pack(">HH", 0, 0)
    blocked = struct.pack(">HH", 10, 60) + short(b"\xff")
    reader = reading(a_frame(1, 1, close) + a_frame(1, 0, blocked))
    first, second = await read_all(reader)
    assert isinstance(first, commands.Channel.Close)
    assert first.reply_text.startswith("NOT_FOUND - no queue '??")
    assert second.reason == "?"


@pytest.mark.parametrize(
    ("listed", "message_id"),
    [
        (properties(message_id=short(b"e-1"), timestamp=b"\xff" * 8, headers=table()), "e-1"),
        (properties(message_id=short(b"e-1"), headers=table((LATIN, text(b"")))), "e-1"),
        (properties(message_id=short(LATIN)), "caf\\xe9"),
        (properties(), None),
    ],
)
async def test_a_returned_message_keeps_its_id_and_nothing_else(listed, message_id):
    """What a relay sent comes back: only the id is asked for."""
    method = struct.pack(">HHH", 60, 50, 312) + short(b"NO_ROUTE") + short(b"ex") + short(LATIN)
    sent = (
        a_frame(1, 1, method)
        + a_frame(2, 1, content_header(listed, len(BODY)))
        + a_frame(3, 1, BODY)
    )
    returned, head, body = await read_all(reading(sent))
    assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
    assert (returned.exchange, returned.routing_key) == ("ex", "caf?")
    assert head.properties == commands.Basic.Properties(message_id=message_id)
    assert body.value == BODY


async def test_a_server_that_speaks_something_else_is_passed_on():
    reader = reading(b"AMQP\x00\x00\x09\x01")
    assert await reader.readexactly(7) == b"AMQP\x00\x00\x09"
    assert await reader.read() == b"\x01"


async def test_the_end_in_the_middle_of_a_frame_is_an_end():
    reader = reading(delivery(properties())[:-4])
    with pytest.raises(asyncio.IncompleteReadError):
        await read_all(reader)


@pytest.mark.promise("G6")
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, ("sent-7", "mail", "c-7")),
        ({"postroom-id": "e-1", "postroom-type": "paid", "postroom-correlation-id": "c-1"},
         ("e-1", "paid", "c-1")),
        ({"cloudEvents:id": "e-1", "cloudEvents:source": "/shop", "cloudEvents:type": "paid",
          "cloudEvents:specversion": "1.0"}, ("/shop e-1", "paid", "c-7")),
    ],
    ids=["none", "postroom", "CloudEvents"],
)  # fmt: skip
def test_headers_take_precedence_over_properties(headers, expected):
    """Some libraries give each message its own id: a repeat would not be recognized by it."""
    content = Content("orders", "sent-7", "mail", "c-7", "application/json", headers)
    found = incoming(content, BODY).headers
    names = ("postroom-id", "postroom-type", "postroom-correlation-id")
    assert tuple(found.get(name) for name in names) == expected
