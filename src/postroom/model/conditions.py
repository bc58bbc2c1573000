"""Conditions on headers and payloads, as operators write them: `order.total>100`.

They are evaluated here, not in a database: the same on every store, whatever a document contains.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from postroom.model.codec import JSON
from postroom.record import Record

MISSING: Final = object()

_CONDITION = re.compile(
    r"(?P<path>[^=!<>~]+?)\s*(?P<sign>!=|>=|<=|=|>|<|~)\s*(?P<value>.*)", re.DOTALL
)
_STEP = re.compile(r"\[(-?[0-9]{1,9})\]|\.?([^.\[\]]+)")
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip


class Header(NamedTuple):
    """A header and its value."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"

    def matches(self, record: Record) -> bool:
        """Return whether a record has this header."""
        try:
            return record.headers.get(self.name) == self.value
        except (ValueError, AttributeError, RecursionError):  # edited by hand
            return False


class Condition(NamedTuple):
    """A comparison with the value at a path of a JSON payload.

    wanted      the values that count as equal: `42` is a number or the text "42"
    """

    text: str
    path: tuple[str | int, ...]
    sign: str
    wanted: tuple[Any, ...]

    def __str__(self) -> str:
        return self.text

    def matches(self, payload: Any) -> bool:
        """Return whether a decoded payload fulfils it. A path that is missing never matches."""
        found = value_at(payload, self.path)
        if found is MISSING:
            return False
        if self.sign == "=":
            return any(_equal(found, one) for one in self.wanted)
        if self.sign == "!=":
            return not any(_equal(found, one) for one in self.wanted)
        if self.sign == "~":
            return _contains(found, self.wanted)
        compare = _ORDERS[self.sign]
        return any(_comparable(found, one) and compare(found, one) for one in self.wanted)


def read_header(text: str) -> Header:
    """Parse `name=value`. Raises ValueError."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ValueError("a header such as tenant=acme")
    return Header(name.strip(), value)


def read_condition(text: str) -> Condition:
    """Parse `order.total>100`, `items[0].sku=A-1`, `state!=paid`, `note~urgent`. Raises ValueError.

    A value is a JSON literal (100, true, null, "100"), or else text.
    """
    found = _CONDITION.fullmatch(text.strip())
    path = () if found is None else _path(found["path"].strip())
    if found is None or not path:
        raise ValueError("a condition such as order.total>100 (signs: = != > >= < <= ~)")
    return Condition(text.strip(), path, found["sign"], _values(found["value"].strip()))


def payload_of(record: Record) -> Any:
    """Return the decoded JSON payload; MISSING if there is none, or it is not JSON."""
    kind = record.content_type.partition(";")[0].strip().lower()
    if kind != JSON and not kind.endswith("+json"):
        return MISSING
    try:
        return json.loads(record.payload)
    except (ValueError, RecursionError):  # not written by `add`
        return MISSING


def value_at(payload: Any, path: tuple[str | int, ...]) -> Any:
    """Return the value at a path; MISSING if there is none."""
    for step in path:
        if isinstance(step, int):
            if not isinstance(payload, list) or not -len(payload) <= step < len(payload):
                return MISSING
            payload = payload[step]
        elif isinstance(payload, dict) and step in payload:
            payload = payload[step]
        else:
            return MISSING
    return payload


def _path(text: str) -> tuple[str | int, ...]:
    text = text.removeprefix("$")
    steps: list[str | int] = []
    end = 0
    for found in _STEP.finditer(text):
        if found.start() != end:
            return ()
        end = found.end()
        steps.append(found[2].strip() if found[1] is None else int(found[1]))
    return tuple(steps) if end == len(text) else ()


def _values(text: str) -> tuple[Any, ...]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return (text,)
    if isinstance(value, (dict, list)):
        return (value,)
    return (value,) if isinstance(value, str) else (value, text)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _equal(found: Any, wanted: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    if _is_number(found) and _is_number(wanted):
        return bool(found == wanted)
    return type(found) is type(wanted) and bool(found == wanted)


def _comparable(found: Any, wanted: Any) -> bool:
    return (_is_number(found) and _is_number(wanted)) or (
        isinstance(found, str) and isinstance(wanted, str)
    )


def _contains(found: Any, wanted: tuple[Any, ...]) -> bool:
    if isinstance(found, str):
        return any(isinstance(one, str) and one in found for one in wanted)
    if isinstance(found, list):
        return any(_equal(item, one) for item in found for one in wanted)
    return False
