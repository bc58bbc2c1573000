"""The values that a request gives: of a query, a form or a JSON document, checked one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar

from postroom.admin.selection import Selection
from postroom.admin.values import instant, per_second, span
from postroom.errors import ConfigError
from postroom.lookup import Filter
from postroom.record import State

T = TypeVar("T")

MAX_IDS = 500
MAX_CHARS = 4_000
FILTERS = (
    "state", "stream", "type", "topic", "key", "error", "group", "since", "until", "correlation",
    "causation",
)  # fmt: skip
_MAX_SEQ = (1 << 63) - 1


class Given:
    """Named texts; a missing or empty one is None. Errors are ConfigErrors for the sender."""

    def __init__(self, values: Mapping[str, Sequence[str]]) -> None:
        self._values = values

    @classmethod
    def of_json(cls, found: Any) -> Given:
        """Return the values of a JSON document: texts, numbers, booleans, lists of texts."""
        if not isinstance(found, dict):
            raise ConfigError("the body must be a JSON object")
        return cls({name: _texts(name, value) for name, value in found.items()})

    def fingerprint(self, verb: str) -> str:
        """Return the same text for the same values of an action."""
        apart = ("reason", "action_id", "csrf", "dry_run")
        values = {name: list(given) for name, given in self._values.items() if name not in apart}
        return sha256(json.dumps([verb, values], sort_keys=True).encode()).hexdigest()

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All values, for the fields of a form."""
        return [(name, value) for name, given in self._values.items() for value in given]

    def text(self, name: str, most: int = MAX_CHARS) -> str | None:
        found = self._values.get(name) or ()
        if len(found) > 1:
            raise ConfigError(f"{name} was given more than once")
        if not found or not found[0]:
            return None
        if len(found[0]) > most:
            raise ConfigError(f"{name} is longer than {most:,} characters")
        if "\x00" in found[0]:
            raise ConfigError(f"{name} contains a NUL character")
        try:
            found[0].encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{name} is not valid Unicode") from None
        return found[0]

    def need(self, name: str) -> str:
        found = self.text(name)
        if found is None:
            raise ConfigError(f"{name} is missing")
        return found

    def texts(self, name: str) -> list[str]:
        found = [one for one in self._values.get(name) or () if one]
        if len(found) > MAX_IDS:
            raise ConfigError(f"{name}: at most {MAX_IDS} are possible; use a filter instead")
        return [Given({name: [one]}).need(name) for one in dict.fromkeys(found)]

    def flag(self, name: str) -> bool:
        found = self.text(name)
        if found not in (None, "1", "0", "on", "true", "false"):
            raise ConfigError(f"{name} must be true or false")
        return found in ("1", "on", "true")

    def number(self, name: str, least: int, most: int) -> int | None:
        found = self.text(name)
        if found is None:
            return None
        try:
            number = int(found)
        except ValueError:
            raise ConfigError(f"{name} must be a whole number") from None
        if not least <= number <= most:
            raise ConfigError(f"{name} must be between {least:,} and {most:,}")
        return number

    def read(self, name: str, convert: Callable[[str], T]) -> T | None:
        """Convert a text by a function that raises ValueError with the expected form."""
        found = self.text(name)
        if found is None:
            return None
        try:
            return convert(found)
        except (ValueError, OverflowError) as error:
            raise ConfigError(f"{name} is not {error}") from error

    def seconds(self, name: str) -> float | None:
        return self.read(name, span)

    def rate(self, name: str) -> float | None:
        return self.read(name, per_second)

    @property
    def filters(self) -> dict[str, str]:
        """The filters that are given."""
        found = {name: self.text(name) for name in FILTERS}
        return {name: value for name, value in found.items() if value is not None}

    def selection(self, state: State | None = None) -> Selection:
        """Return the selection of the filters; `state` is the one if none is given."""
        since, until = self.read("since", instant), self.read("until", instant)
        if since is not None and until is not None and since >= until:
            raise ConfigError("since must be before until: no event can match")
        group = self.text("group")
        text = self.text("state")
        if text is not None and text not in list(State):
            raise ConfigError(f"there is no state {text!r}; known: {', '.join(State)}")
        wanted = State(text) if text is not None else state
        if group is not None:
            if wanted not in (None, State.DEAD):
                raise ConfigError("a group has dead letters only")
            wanted = State.DEAD
        after = self.number("after", 0, _MAX_SEQ)
        found = Filter(
            stream=self.text("stream"),
            state=wanted,
            type=self.text("type"),
            topic=self.text("topic"),
            key=self.text("key"),
            error=self.text("error"),
            from_us=since,
            before_us=until,
            correlation_id=self.text("correlation"),
            causation_id=self.text("causation"),
            after_seq=after or 0,
        )
        return Selection(found, group, after == 0)


def _texts(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, (str, int, float)):
        return [str(value)]
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return list(value)
    raise ConfigError(f"{name} must be text, a number, a boolean or a list of texts")
