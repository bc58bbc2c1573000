"""Messages about unknown names, with a suggestion."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(what: str, name: str, known: Iterable[str], *, meant: str | None = None) -> str:
    """Return a message about an unknown name: the nearest known name, and all known names.

    meant   what to suggest instead of the nearest name
    """
    names = sorted(known)
    near = [meant] if meant is not None else difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    listed = f" Known: {', '.join(names)}" if names else " There are none"
    return f"unknown {what} {name!r}{hint}{listed}"
