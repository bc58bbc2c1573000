"""Durations: a number of seconds, or a timedelta."""

from __future__ import annotations

from datetime import timedelta

Seconds = float | timedelta
"""The type of every `*_seconds` option."""


def to_seconds(value: Seconds) -> float:
    """Return the duration as a number of seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def span_microseconds(seconds: float) -> int:
    """Return a time span in the unit of the tables: whole microseconds."""
    return round(seconds * 1_000_000)
