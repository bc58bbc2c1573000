"""Names and other short texts, checked before they are stored or sent."""

from __future__ import annotations

import re

from postroom.errors import ConfigError

EMPTY = "is empty; give it a value"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class TextError(ValueError):
    """A text that cannot be stored. The caller converts it to its own error type.

    what, problem   the subject and the predicate of the message
    limit           the bound that was exceeded, in bytes
    """

    def __init__(self, what: str, problem: str, limit: int | None = None) -> None:
        super().__init__(f"{what} {problem}")
        self.what = what
        self.problem = problem
        self.limit = limit


def check_text(what: str, value: object, limit: int) -> None:
    """Raise TextError unless it is valid, non-empty text without control characters."""
    if not isinstance(value, str):
        raise TextError(what, f"must be text, not {type(value).__name__}; use str(...)")
    if not value:
        raise TextError(what, EMPTY)
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise TextError(
            what, f"contains a lone surrogate at position {error.start} and is not valid Unicode"
        ) from error
    if size > limit:
        raise TextError(what, f"has {size} bytes in UTF-8; the limit is {limit}", limit)
    if not value.isprintable() and (found := _CONTROL.search(value)):
        raise TextError(
            what,
            f"contains the control character {found[0]!r} at position {found.start()}; remove it",
        )


def check_setting(what: str, value: object, limit: int) -> None:
    """Check the text of a setting. Raises ConfigError."""
    try:
        check_text(what, value, limit)
    except TextError as error:
        raise ConfigError(str(error)) from error
