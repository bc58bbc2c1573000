"""Whatever the encoder accepts, every reader of JSON gets back."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.errors import PayloadError
from postroom.model import codec
from postroom.model.codec import BINARY, JSON, MAX_DEPTH, MAX_PAYLOAD_BYTES, decode_json, encode

ANY_TEXT = st.text(st.characters(codec=None, categories=None))  # lone surrogates included
GOOD_TEXT = st.text(st.characters(codec="utf-8"))


def values(text, floats):
    return st.recursive(
        st.none() | st.booleans() | st.integers() | floats | text,
        lambda inner: (
            st.lists(inner, max_size=5)
            | st.tuples(inner, inner)
            | st.dictionaries(text, inner, max_size=5)
        ),
        max_leaves=25,
    )


def plain(value):
    """The value as JSON sees it: tuples are lists."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def sayable(value):
    """Whether JSON in UTF-8 can say it, judged without the encoder."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return not any(0xD800 <= ord(c) <= 0xDFFF for c in value)
    if isinstance(value, (list, tuple)):
        return all(sayable(item) for item in value)
    if isinstance(value, dict):
        return all(sayable(k) and sayable(v) for k, v in value.items())
    return True


@settings(deadline=None)
@given(values(GOOD_TEXT, st.floats(allow_nan=False, allow_infinity=False)))
def test_good_values_come_back_equal_from_valid_utf8(value):
    body, content_type = encode(value)
    assert content_type == JSON
    assert json.loads(body.decode("utf-8", errors="strict")) == plain(value)
    assert decode_json(body) == plain(value)
    assert encode(plain(value))[0] == body


@settings(deadline=None)
@given(values(ANY_TEXT, st.floats()))
def test_it_refuses_exactly_what_json_cannot_say(value):
    try:
        body, _ = encode(value)
    except PayloadError as error:
        assert not sayable(value)
        assert error.path.startswith("$")
    else:
        assert sayable(value)

        def refuse(text):
            raise AssertionError(f"{text} is no JSON")

        assert json.loads(body.decode(), parse_constant=refuse) == plain(value)


@given(st.binary(max_size=1000))
def test_bytes_are_not_touched(raw):
    assert encode(raw) == (raw, BINARY)


@given(st.integers(1, 100))
def test_depth_is_counted_in_containers(levels):
    value: object = "leaf"
    for n in range(levels):
        value = [value] if n % 2 else {"a": value}
    try:
        encode(value)
    except PayloadError as error:
        assert levels > MAX_DEPTH
        assert error.limit == MAX_DEPTH
    else:
        assert levels <= MAX_DEPTH


@settings(max_examples=20, deadline=None)
@given(st.integers(-3, 3))
def test_size_is_counted_in_bytes(difference):
    text = "x" * (MAX_PAYLOAD_BYTES - 2 + difference)
    try:
        encode(text)
    except PayloadError as error:
        assert difference > 0
        assert error.limit == MAX_PAYLOAD_BYTES
    else:
        assert difference <= 0


@settings(deadline=None)
@given(values(GOOD_TEXT, st.floats(allow_nan=False, allow_infinity=False)), st.booleans())
def test_what_is_counted_on_the_way_is_never_more_than_what_is_written(value, rich):
    """With a limit of a few bytes: refused is exactly what is longer, whichever way it is walked."""
    if rich:
        value = OrderedDict(value=value, at=Decimal("1.5"))
    size = len(
        json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), default=str).encode()
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "MAX_PAYLOAD_BYTES", 60)
        try:
            body, _ = encode(value)
        except PayloadError as error:
            assert size > 60
            assert error.limit == 60
        else:
            assert len(body) == size <= 60
