"""Retry policies and backoff of failed events."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from postroom.errors import ConfigError
from postroom.model.durations import Seconds, to_seconds

Backoff = Callable[[int], Seconds]
"""A function from the number of the failed attempt (1, 2, …) to the delay before the next one."""


_log = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponential backoff with full jitter: between 0 and `base * 2^(n-1)`, at most `maximum`."""

    base: Seconds = 0.5
    maximum: Seconds = 300.0
    random: Callable[[], float] = field(default=random.random, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_range(self.base, self.maximum)

    def __call__(self, attempt: int) -> float:
        ceiling = min(to_seconds(self.maximum), to_seconds(self.base) * 2.0 ** min(attempt - 1, 64))
        return ceiling * self.random()


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear backoff with jitter: half to all of `base * n`, at most `maximum`."""

    base: Seconds = 1.0
    maximum: Seconds = 300.0
    random: Callable[[], float] = field(default=random.random, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_range(self.base, self.maximum)

    def __call__(self, attempt: int) -> float:
        ceiling = min(to_seconds(self.maximum), to_seconds(self.base) * attempt)
        return ceiling * (0.5 + self.random() / 2)


@dataclass(frozen=True, slots=True)
class Constant:
    """The same delay after every attempt."""

    wait: Seconds = 1.0

    def __post_init__(self) -> None:
        if not 0 <= to_seconds(self.wait) <= MAX_WAIT_SECONDS:
            raise ConfigError(
                f"backoff: wait must be from 0 to {MAX_WAIT_SECONDS:,.0f} s (a year), "
                f"not {self.wait}"
            )

    def __call__(self, attempt: int) -> float:  # noqa: ARG002 - the shape of a backoff
        return to_seconds(self.wait)


def _check_range(base: Seconds, maximum: Seconds) -> None:
    if not 0 < to_seconds(base) <= to_seconds(maximum) <= MAX_WAIT_SECONDS:
        raise ConfigError(
            f"backoff: must be 0 < base <= maximum <= {MAX_WAIT_SECONDS:,.0f} s (a year), "
            f"not base={base} and maximum={maximum}"
        )


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Maximum attempts, backoff between them, and the action after the last one.

    on_exhausted="bury"     after `max_attempts` the event becomes a dead letter; later events of
                            its key continue
    on_exhausted="block"    the event is retried forever, its key waits and an alarm is raised.
                            Strict events always block
    """

    max_attempts: int = 5
    backoff: Backoff = field(default_factory=Exponential)
    on_exhausted: Literal["bury", "block"] = "bury"

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts must be 1 or more, not {self.max_attempts}")
        if not callable(self.backoff):
            raise ConfigError(
                "backoff must be a function from the attempt's number to a delay, "
                f"not {self.backoff!r}"
            )
        if self.on_exhausted not in ("bury", "block"):
            raise ConfigError(f"on_exhausted must be 'bury' or 'block', not {self.on_exhausted!r}")

    def delay(self, attempt: int) -> float:
        """Return the delay in seconds after attempt number `attempt` failed, from 0 to a year.

        If the backoff function raises, the error is logged and the default backoff is used.
        """
        try:
            wait = to_seconds(self.backoff(attempt))
        except Exception:
            _log.exception("the backoff function failed for attempt %s; using the default", attempt)
            wait = Exponential()(attempt)
        # The comparison turns NaN into the maximum delay, never into 0.
        return max(0.0, wait) if wait <= MAX_WAIT_SECONDS else MAX_WAIT_SECONDS

    def gives_up(self, attempts: int, *, strict: bool) -> bool:
        """Return whether an event that failed `attempts` times becomes a dead letter."""
        return not strict and self.on_exhausted == "bury" and attempts >= self.max_attempts
