"""Marks: how a foreign message or row is found again, in whatever is left of it."""

import re

_MARK = re.compile("~f([0-9]+)~")
NOBODY = -1


def mark(number):
    """Return the text that tells which one it is; it is in its id, its key or its body."""
    return f"~f{number}~"


def mark_in(*parts):
    """Return the number of the mark in any of these texts or bytes; NOBODY if there is none."""
    for part in parts:
        text = part.decode("latin-1") if isinstance(part, bytes) else part
        if found := _MARK.search(text):
            return int(found[1])
    return NOBODY


def is_marked(*parts):
    return mark_in(*parts) != NOBODY
