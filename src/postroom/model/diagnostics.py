"""Findings of the doctor about a database or a broker."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["error", "warning", "info"]


class Finding(NamedTuple):
    """A finding about a database or a broker: the problem, why it matters, and the fix.

    level   error: a guarantee does not hold, or nothing works; warning: a risk, or reduced
            performance; info: for information
    """

    level: Level
    what: str
    why: str
    fix: str
