"""Rows that cannot be converted to a record: written by hand, by another program, or damaged.

Such a row affects one event, never a batch. A store returns it to the relay as a `FlawedRecord`,
which names the problem and has placeholders in the unusable fields. The relay does not publish it
but rejects it in its turn: it becomes a dead letter, or blocks its key if the retry policy or
strict order requires that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any, get_args, get_type_hints

from postroom.errors import NotFoundError
from postroom.model.clock import MAX_MICROSECONDS, MIN_MICROSECONDS
from postroom.record import Record, State, short_error

MAX_ATTEMPTS = 1_000_000
"""Above the attempts of any retry policy: a relay did not write a larger number."""

_SHOWN_CHARS = 80
_JSON_COLUMNS = {
    "headers_json": "headers",
    "causation_json": "causation_path",
    "options_json": "options",
}
_STATES = frozenset(str(state) for state in State)

TYPES: Mapping[str, tuple[type, ...]] = {
    name: get_args(hint) or (hint,) for name, hint in get_type_hints(Record).items()
}
"""The types of a Record's fields."""
_USUAL: Mapping[tuple[type, ...], Any] = {(int,): 0, (str,): "", (bytes,): b""}

_sound: set[tuple[type, ...]] = set()  # combinations of types that are known to be valid


class Undecodable(str):
    """Text of a row that is not UTF-8, with its bytes escaped."""

    __slots__ = ()


def decode(stored: bytes) -> str:
    """Decode a text of a row; text that is not UTF-8 can be shown but not sent."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return Undecodable(stored.decode(errors="backslashreplace"))


class FlawedRecord(Record):
    """A row that is not a valid record. `seq`, `lane` and `key_hash` are those of the row."""

    problem: str

    @property
    def flaw(self) -> str:
        """The problem with the row, for `last_error` and the CLI."""
        return self.problem

    def _replace(self, **changes: Any) -> FlawedRecord:
        return _flawed(super()._replace(**changes), self.problem)


def to_records(rows: Iterable[Sequence[Any]]) -> list[Record]:
    """Convert rows to records; columns are in the order of Record's fields."""
    return list(map(to_record, rows))


def to_record(row: Sequence[Any]) -> Record:
    """Convert a row to a record, or to a FlawedRecord if it is not valid."""
    types = tuple(map(type, row))
    if types in _sound or _note_sound(types):
        record: Record = tuple.__new__(Record, row)  # Record._make without its Python frame
        problem = _problem(record)
        if problem is None:
            return record
    else:
        problem = next(filter(None, starmap(_wrong_type, zip(TYPES, row, strict=True))))
    return _flawed(
        map(_usable, TYPES, row), short_error(f"the stored row is not an event: {problem}")
    )


def with_flaw(record: Record, flaw: str) -> FlawedRecord:
    """Return a displayable record of something that is not an event, with the reason."""
    return _flawed(record, flaw)


def refuse_to_skip(event_id: str, row: Sequence[Any]) -> None:
    """Raise NotFoundError if the marker for this row could not be sent either.

    The marker copies key, topic and headers of the row; its other fields are its own.
    """
    own = {"type": "", "payload": b"", "content_type": "", "schema_version": 1, "occurred_us": 0}
    own |= {"state": "pending", "attempts": 0, "next_attempt_us": None, "last_error": None}
    marker = to_record([own.get(name, value) for name, value in zip(TYPES, row, strict=True)])
    if marker.flaw is not None:
        raise NotFoundError(
            f"cannot skip event {event_id!r}: {marker.flaw}. Correct the row, or bury it "
            "(strict consumers then wait for its number)"
        )


def _flawed(fields: Iterable[Any], flaw: str) -> FlawedRecord:
    record = tuple.__new__(FlawedRecord, tuple(fields))
    record.problem = flaw
    return record


def _note_sound(types: tuple[type, ...]) -> bool:
    if len(types) != len(TYPES) or any(
        kind not in allowed for kind, allowed in zip(types, TYPES.values(), strict=True)
    ):
        return False
    _sound.add(types)
    return True


def _problem(record: Record) -> str | None:
    """Return the problem with the values of a row whose types are valid."""
    if not (
        MIN_MICROSECONDS <= record.occurred_us <= MAX_MICROSECONDS
        and MIN_MICROSECONDS <= record.created_us <= MAX_MICROSECONDS
        and 0 <= record.attempts < MAX_ATTEMPTS
        and record.state in _STATES
    ):
        return next(
            problem
            for name, value in record._asdict().items()
            if (problem := _wrong_value(name, value)) is not None
        )
    due = record.next_attempt_us
    if due is not None and not MIN_MICROSECONDS <= due <= MAX_MICROSECONDS:
        return _wrong_value("next_attempt_us", due)
    if record.headers_json is not None and not _is_json(record.headers_json, _are_headers):
        return f"headers are not a JSON object of text: {_short(record.headers_json)}"
    if record.causation_json is not None and not _is_json(record.causation_json, _is_path):
        return f"causation_path is not a JSON list of text pairs: {_short(record.causation_json)}"
    if record.options_json is not None and not _is_json(record.options_json, _is_object):
        return f"options are not a JSON object: {_short(record.options_json)}"
    if record.expires_us is not None:
        return _wrong_value("expires_us", record.expires_us)
    return None


def _wrong_type(name: str, value: Any) -> str | None:
    allowed = TYPES[name]
    if type(value) in allowed:
        return None
    if type(value) is Undecodable:
        return f"{_column(name)} is not UTF-8 text: {value[:_SHOWN_CHARS]}"
    if value is None:
        return f"{_column(name)} is NULL"
    return f"{_column(name)} is {type(value).__name__}, not {allowed[0].__name__}: {_short(value)}"


def _wrong_value(name: str, value: Any) -> str | None:
    if name.endswith("_us") and value is not None:
        if value > MAX_MICROSECONDS:
            return f"{_column(name)} is after the year 9999"
        if value < MIN_MICROSECONDS:
            return f"{_column(name)} is before the year 1"
    if name == "attempts" and not 0 <= value < MAX_ATTEMPTS:
        return f"attempts is {_short(value)}"
    if name == "state" and value not in _STATES:
        return f"state is {_short(value)}"
    return None


def _usable(name: str, value: Any) -> Any:
    """Return a value that the relay and the command line can handle."""
    allowed = TYPES[name]
    if type(value) in allowed and _wrong_value(name, value) is None:
        if name == "headers_json" and not _is_json(value, _are_headers):
            return None
        if name == "causation_json" and not _is_json(value, _is_path):
            return None
        if name == "options_json" and not _is_json(value, _is_object):
            return None
        return value
    if name == "state":
        return str(State.PENDING)
    if name == "key_hash" and isinstance(value, str):
        return value.encode(errors="replace")
    if name == "payload" and isinstance(value, str):
        return value.encode(errors="replace")
    if str in allowed and value is not None and name not in _JSON_COLUMNS:
        return value.decode(errors="backslashreplace") if type(value) is bytes else str(value)
    return None if type(None) in allowed else _USUAL[allowed]


def _is_json(text: str | None, fits: Callable[[Any], bool]) -> bool:
    if text is None:
        return True
    try:
        return fits(json.loads(text))
    except (ValueError, RecursionError):
        return False


def _are_headers(value: Any) -> bool:
    return type(value) is dict and all(type(item) is str for item in value.values())


def _is_object(value: Any) -> bool:
    return type(value) is dict


def _is_path(value: Any) -> bool:
    return type(value) is list and all(
        type(step) is list and len(step) == 2 and type(step[0]) is type(step[1]) is str
        for step in value
    )


def _column(name: str) -> str:
    """Return the name of a field's column."""
    return _JSON_COLUMNS.get(
        name, name.removesuffix("_us") + "_at" if name.endswith("_us") else name
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
