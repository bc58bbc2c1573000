"""Frames encoded by hand are those that pamqp would make."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from postroom.brokers.rabbitmq.frames import Encoder, UnsendableError
from postroom.brokers.rabbitmq.message import Message
from postroom.testing.broker_tools import HOSTILE, make_record

FRAME_MAX = 131_072


def message(exchange="orders", routing_key="order.created", headers=None, **given):
    facts = {"content_type": "application/json", "correlation_id": None, "timestamp": 1_700_000_000}
    extra = {name: given.pop(name) for name in list(given) if name in facts or name == "app_id"}
    facts |= {"app_id": "postroom"} | extra
    return Message(make_record(**given), exchange, routing_key, headers or {"a": "b"}, **facts)


def by_pamqp(made, channel, frame_max=FRAME_MAX):
    record = made.record
    properties = commands.Basic.Properties(
        content_type=made.content_type,
        headers=dict(made.headers),
        delivery_mode=2,
        correlation_id=made.correlation_id,
        message_id=record.id,
        timestamp=None if made.timestamp is None else datetime.fromtimestamp(made.timestamp, UTC),
        message_type=record.type,
        app_id=made.app_id,
    )
    publish = commands.Basic.Publish(
        exchange=made.exchange, routing_key=made.routing_key, mandatory=True
    )
    room = frame_max - 8
    bodies = [record.payload[at : at + room] for at in range(0, len(record.payload), room)]
    frames = [publish, ContentHeader(0, len(record.payload), properties)]
    frames += [ContentBody(body) for body in bodies]
    return b"".join(frame.marshal(each, channel) for each in frames)


def frames_of(data):
    """Take a byte string apart again, with pamqp."""
    found = []
    while data:
        size, channel, value = frame.unmarshal(data)
        found.append((channel, value))
        data = data[size:]
    return found


@pytest.mark.promise("Q3")
@pytest.mark.parametrize("text", ["plain", *HOSTILE])
def test_the_same_bytes_as_pamqp(text):
    made = message(
        "orders", text, {"a": text}, id=text[:50], type=text, app_id=text[:9], content_type=text,
        correlation_id=text, payload=text.encode(),
    )  # fmt: skip
    assert Encoder(7, FRAME_MAX).encode(made) == by_pamqp(made, 7)


short = st.text(max_size=60)
names = st.text(min_size=1, max_size=30)  # pamqp cuts a name of more than 128 bytes


@given(
    exchange=st.text("abcXYZ019-_.:@#,/+ ", max_size=60),  # pamqp refuses others
    key=short,
    headers=st.dictionaries(names, st.text(), max_size=8),
    correlation_id=st.none() | st.text(min_size=1, max_size=60),
    timestamp=st.none() | st.integers(0, 2**33),
    payload=st.binary(max_size=9_000),
    channel=st.integers(1, 65_535),
    frame_max=st.sampled_from([4_096, 8_192, FRAME_MAX]),
)
def test_the_same_bytes_as_pamqp_whatever_it_is(
    exchange, key, headers, correlation_id, timestamp, payload, channel, frame_max
):
    # pamqp sorts a table by name; its order means nothing.
    headers = dict(sorted(headers.items())) or {"a": "b"}
    made = message(
        exchange, key, headers, payload=payload, correlation_id=correlation_id, timestamp=timestamp
    )
    assert Encoder(channel, frame_max).encode(made) == by_pamqp(made, channel, frame_max)


def test_persistent_and_mandatory():
    publish, header, body = (f for _, f in frames_of(Encoder(3, FRAME_MAX).encode(message())))
    assert (publish.exchange, publish.routing_key) == ("orders", "order.created")
    assert (publish.mandatory, publish.immediate) == (True, False)
    assert header.properties.delivery_mode == 2
    assert (header.body_size, body.value) == (7, b'{"n":1}')


def test_an_empty_body_has_no_frame():
    frames = frames_of(Encoder(1, FRAME_MAX).encode(message(payload=b"")))
    assert [type(f).__name__ for _, f in frames] == ["Publish", "ContentHeader"]


@pytest.mark.parametrize(("size", "parts"), [(4_088, [4_088]), (4_089, [4_088, 1])])
def test_a_large_body_is_cut_into_frames(size, parts):
    data = Encoder(1, 4_096).encode(message(payload=b"x" * size))
    assert [len(f.value) for _, f in frames_of(data)[2:]] == parts


def test_no_limit_of_the_server_is_no_limit():
    data = Encoder(1, 0).encode(message(payload=b"x" * 500_000, headers={"a": "x" * 200_000}))
    assert [len(f.value) for _, f in frames_of(data)[2:]] == [500_000]


def test_headers_that_fill_a_frame_are_refused_when_they_overflow_it():
    encoder = Encoder(1, 4_096)
    besides = len(encoder._header(message(headers={"a": ""})))
    fits = message(headers={"a": "x" * (4_088 - besides)})
    assert len(encoder._header(fits)) == 4_088
    encoder.encode(fits)
    with pytest.raises(UnsendableError, match="take 4089 bytes, and a frame holds 4088"):
        encoder.encode(message(headers={"a": "x" * (4_089 - besides)}))


def test_a_long_name_of_a_header_is_not_cut():
    name = "n" * 255
    _, header, _ = (
        f for _, f in frames_of(Encoder(1, FRAME_MAX).encode(message(headers={name: "v"})))
    )
    assert header.properties.headers == {name: "v"}
    with pytest.raises(UnsendableError, match="longer than 255 bytes"):
        Encoder(1, FRAME_MAX).encode(message(headers={name + "n": "v"}))


def test_addresses_are_kept_apart_also_when_there_are_many():
    encoder = Encoder(1, FRAME_MAX)
    for n in range(10_050):
        publish = frames_of(encoder.encode(message(routing_key=f"k{n}")))[0][1]
        assert publish.routing_key == f"k{n}"
