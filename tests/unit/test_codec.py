"""The strict encoder: what it writes, and what it refuses with the path named."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from types import MappingProxyType
from typing import NamedTuple
from unittest.mock import MagicMock
from uuid import UUID

import msgspec
import pydantic
import pytest
from multidict import MultiDict

from postroom.errors import EventError, PayloadError
from postroom.event import Event
from postroom.model.codec import BINARY, JSON, MAX_PAYLOAD_BYTES, decode_json, encode


@dataclasses.dataclass
class Line:
    sku: str
    price: Decimal


class Colour(enum.Enum):
    RED = "red"


class Shade(str, enum.Enum):  # noqa: UP042 - the older form, which prints itself otherwise
    DARK = "dark"


class Level(enum.IntEnum):
    HIGH = 3


class Loud(str):  # noqa: SLOT000
    def __str__(self):
        return "LOUD"


class Model:
    """What pydantic looks like from outside."""

    def __init__(self, dumped):
        self.dumped = dumped

    def model_dump(self, mode):
        assert mode in ("json", "python")
        if isinstance(self.dumped, Exception):
            raise self.dumped
        return self.dumped


class Struct:
    """What msgspec looks like from outside."""

    __struct_fields__ = ("a", "b")
    a = 1
    b = (2, 3)


class Point(NamedTuple):
    x: int
    y: int


# -- what it writes ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (None, b"null"),
        ({}, b"{}"),
        ({"b": 1, "a": [True, False, None]}, b'{"b":1,"a":[true,false,null]}'),
        ("žlutý 🦊", '"žlutý 🦊"'.encode()),
        ("\x00\n\u2028", '"\\u0000\\n\u2028"'.encode()),
        (-0.5, b"-0.5"),
        (1e300, b"1e+300"),
        (2**80, b"1208925819614629174706176"),
        (-(10**3999), b"-1" + b"0" * 3999),
        (Line("x", Decimal("1.10")), b'{"sku":"x","price":"1.10"}'),
        (
            {"at": datetime(2024, 1, 2, 3, 4, 5, 6, UTC)},
            b'{"at":"2024-01-02T03:04:05.000006+00:00"}',
        ),
        ([date(2024, 1, 2), time(3, 4)], b'["2024-01-02","03:04:00"]'),
        (UUID(int=5), b'"00000000-0000-0000-0000-000000000005"'),
        ([Colour.RED, Shade.DARK, Level.HIGH], b'["red","dark",3]'),
        ({Shade.DARK: 1, Loud("quiet"): Loud("quiet")}, b'{"dark":1,"quiet":"quiet"}'),
        (Model({"x": [1]}), b'{"x":[1]}'),
        (Struct(), b'{"a":1,"b":[2,3]}'),
        (Point(1, 2), b"[1,2]"),
        (MappingProxyType(OrderedDict(a=1)), b'{"a":1}'),
    ],
)
def test_json(payload, body):
    assert encode(payload) == (body, JSON)


@pytest.mark.parametrize("raw", [b"\x00\xff", bytearray(b"ab"), memoryview(b"abcd")[::2], b""])
def test_bytes_pass_through_unchanged(raw):
    assert encode(raw) == (bytes(raw), BINARY)


def test_json_is_read_back():
    assert decode_json(b'{"a":[1,"\xc5\xbe"]}') == {"a": [1, "ž"]}


# -- what it refuses --------------------------------------------------------------------------
class NoOffset(tzinfo):
    def utcoffset(self, when):
        return None


loop: list = []
loop.append(loop)


@pytest.mark.parametrize(
    ("payload", "path", "problem"),
    [
        (float("nan"), "$", "nan has no JSON form; send null or text instead"),
        ({"a": [1, {"b": float("inf")}]}, "$.a[1].b", "inf has no JSON form"),
        ({"a": float("-inf")}, "$.a", "-inf has no JSON form"),
        ({"a": Decimal("NaN")}, "$.a", "NaN is not a number"),
        ({"a": Decimal("Infinity")}, "$.a", "Infinity is not a number"),
        ({"a": ["ok", "\ud800"]}, "$.a[1]", "lone surrogate at position 0"),
        ({"a": {"b\udfff": 1}}, "$.a", "lone surrogate at position 1"),
        ({"a": {1: 2}}, "$.a", r"field name 1 is int, not text; use str(1)"),
        ({"a": {None: 2}}, "$.a", "field name None is NoneType"),
        (
            {"items": [1, 2, {"price": object()}]},
            "$.items[2].price",
            "object has no JSON form; convert it first, or pass the whole payload as bytes",
        ),
        ({"a": {1, 2}}, "$.a", "set has no JSON form"),
        ({"a": b"raw"}, "$.a", "bytes has no JSON form"),
        ({"a": 1j}, "$.a", "complex has no JSON form"),
        ({"a": Line}, "$.a", "is the class Line; pass an instance"),
        ({"a": Model}, "$.a", "is the class Model"),
        (
            {"at": datetime(2024, 1, 1)},
            "$.at",
            "is a datetime without a time zone; use datetime.now(UTC)",
        ),
        (
            {"at": datetime(2024, 1, 1, tzinfo=NoOffset())},
            "$.at",
            "is a datetime without a time zone",
        ),
        ({"m": Model(ValueError("no"))}, "$.m", "Model.model_dump failed: no"),
        ({"m": Model({"x": float("nan")})}, "$.m.x", "nan has no JSON form"),
        ({"m": MagicMock()}, "$.m", "MagicMock cannot be converted to plain data"),
        (Line("x", float("nan")), "$.price", "nan has no JSON form"),
        ({"n": [10**5000]}, "$.n[0]", "more than 4,000 digits; send it as text"),
        (loop, "$" + "[0]" * 64, "nested deeper than 64 levels"),
    ],
)
def test_what_json_cannot_say_is_refused_with_its_path(payload, path, problem):
    with pytest.raises(PayloadError) as caught:
        encode(payload)
    assert caught.value.path == path
    assert caught.value.field == "payload"
    assert str(caught.value).startswith(f"event.payload at {path}: ")
    assert problem in str(caught.value)
    assert isinstance(caught.value, EventError)


def nested(levels, core, wrap):
    for _ in range(levels):
        core = wrap(core)
    return core


@dataclasses.dataclass
class Box:
    inner: object


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"a": x}, lambda x: (x,), Box])
@pytest.mark.parametrize("core", ["leaf", UUID(int=1), Colour.RED, Decimal(1)])
def test_sixty_four_levels_are_the_limit_whatever_they_are_made_of(wrap, core):
    encode(nested(64, core, wrap))
    with pytest.raises(
        PayloadError, match="nested deeper than 64 levels; send a flatter payload"
    ) as caught:
        encode(nested(65, core, wrap))
    assert caught.value.limit == 64


def test_nine_hundred_kilobytes_are_the_limit():
    assert MAX_PAYLOAD_BYTES == 900_000
    assert len(encode("x" * 899_998)[0]) == 900_000
    assert len(encode(b"x" * 900_000)[0]) == 900_000
    for payload in ("x" * 899_999, "ž" * 450_000, b"x" * 900_001):
        with pytest.raises(
            PayloadError,
            match=r"bytes exceed the limit of 900,000\. Store the large part elsewhere",
        ) as caught:
            encode(payload)
        assert (caught.value.limit, caught.value.path) == (900_000, "$")


def test_a_time_with_another_zone_keeps_it():
    at = datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert encode(at)[0] == b'"2024-01-01T12:00:00+02:00"'


# -- objects of real libraries ------------------------------------------------------------------------
class Created(msgspec.Struct, tag="created", rename="camel"):
    order_id: int
    lines: list[Line] = []
    note: str | msgspec.UnsetType = msgspec.UNSET


class Paid(msgspec.Struct, tag_field="kind", tag=7):
    amount: Decimal


class Coordinates(msgspec.Struct, array_like=True, tag="at"):
    x: int
    y: float


@pytest.mark.parametrize(
    "payload",
    [Created(5), Created(6, note="n"), Coordinates(1, 2.5)],
    ids=lambda v: type(v).__name__,
)
def test_a_struct_is_written_as_msgspec_writes_it(payload):  # T-E
    body, _ = encode(payload)
    assert msgspec.json.decode(body, type=type(payload)) == payload
    assert json.loads(body) == json.loads(msgspec.json.encode(payload))


def test_a_tagged_union_can_be_read_by_its_consumer():  # T-E
    body, _ = encode({"event": Created(5)})
    assert body == b'{"event":{"type":"created","orderId":5,"lines":[]}}'
    assert encode(Paid(Decimal("1.50")))[0] == b'{"kind":7,"amount":"1.50"}'
    with pytest.raises(PayloadError, match="NaN"):
        encode(Paid(Decimal("NaN")))


class Account(pydantic.BaseModel):
    balance: Decimal = Decimal(1)
    token: pydantic.SecretStr | None = None
    parts: list[dict[str, Decimal]] = []


class Revealed(pydantic.BaseModel):
    token: pydantic.SecretStr

    @pydantic.field_serializer("token", when_used="json")
    def reveal(self, token):
        return token.get_secret_value()


@pytest.mark.parametrize(
    ("payload", "path", "problem"),
    [
        (Account.model_construct(balance=Decimal("NaN")), "$.balance", "NaN is not a number"),
        (
            {"a": [Account.model_construct(parts=[{}, {"x": Decimal("-Infinity")}])]},
            "$.a[0].parts[1].x", "-Infinity is not a number",
        ),
        (Account(token="hush"), "$.token", "would be sent as asterisks"),
        ({"token": pydantic.SecretStr("hush")}, "$.token", "would be sent as asterisks"),
    ],
)  # fmt: skip
def test_what_pydantic_would_hide_is_refused(payload, path, problem):  # T-E
    with pytest.raises(PayloadError, match=re.escape(problem)) as caught:
        encode(payload)
    assert caught.value.path == path


def test_what_a_model_says_on_purpose_is_sent():
    assert encode(Revealed(token="known"))[0] == b'{"token":"known"}'
    assert encode(Account())[0] == b'{"balance":"1","token":null,"parts":[]}'


class Odd(str):
    """Text that is equal to nothing."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other):
        return self is other


@pytest.mark.parametrize("payload", [MultiDict(a=1, b=2), {Odd("a"): 1, Odd("b"): 2}])
def test_names_that_come_once_are_written(payload):
    assert encode(payload)[0] == b'{"a":1,"b":2}'


@pytest.mark.parametrize("payload", [MultiDict([("a", 1), ("a", 2)]), {Odd("a"): 1, Odd("a"): 2}])
def test_a_name_that_comes_twice_is_refused(payload):  # T-E
    with pytest.raises(PayloadError, match=r"\$\.form: the field 'a' occurs twice"):
        encode({"form": payload})


class Boxed(int):
    def __int__(self):
        return 99


class Rounded(float):
    def __float__(self):
        return 99.0


def test_numbers_keep_their_own_value():  # T-E
    assert encode([Boxed(5), Rounded(1.5)])[0] == b"[5,1.5]"


# -- what unfolds -------------------------------------------------------------------------------------
def laughs(leaf, levels):
    for _ in range(levels):
        leaf = [leaf] * 8
    return leaf


@pytest.mark.parametrize(
    "payload",
    [laughs("lol", 40), laughs(1, 40), laughs({"a": None}, 40), laughs(Decimal(1), 40),
     {"text": ["x" * 10_000] * 10_000}, {f"{n}": laughs("", 20) for n in range(3)}],
)  # fmt: skip
def test_a_payload_that_unfolds_is_refused_while_it_is_walked(payload):  # T-E
    """8 to the power of 40 values: counted to their end, or written, this test would not end."""
    with pytest.raises(PayloadError, match="exceeds the limit of 900,000 bytes") as caught:
        encode(payload)
    assert caught.value.limit == MAX_PAYLOAD_BYTES


def test_the_largest_payload_is_not_refused_by_the_count():
    for payload in (
        "x" * (MAX_PAYLOAD_BYTES - 2),
        [1] * (MAX_PAYLOAD_BYTES // 2 - 1),
        [Decimal(1)] * (MAX_PAYLOAD_BYTES // 4 - 1),
        {f"{n:06}": "" for n in range(MAX_PAYLOAD_BYTES // 12 - 1)},
    ):
        assert MAX_PAYLOAD_BYTES - 20 <= len(encode(payload)[0]) <= MAX_PAYLOAD_BYTES


# -- messages -----------------------------------------------------------------------------------------
def test_what_cannot_be_printed_is_refused_in_words():
    with pytest.raises(PayloadError, match="the field name <int> is int"):
        encode({10**5000: 1})
    with pytest.raises(EventError, match="must be a whole number, not <list>"):
        Event("t", schema_version=[10**5000])
    with pytest.raises(EventError, match="pairs, not <list>"):
        Event("t", causation_path=[[10**5000]])
