"""What a look at a database or a broker finds that an operator should know."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["error", "warning", "info"]


class Finding(NamedTuple):
    """Something about a database or a broker: what it is, why it matters here, and what to do.

    level   error: a promise does not hold, or nothing will work; warning: it may hurt one day or
            slows things down; info: good to know
    """

    level: Level
    what: str
    why: str
    fix: str
