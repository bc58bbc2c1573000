"""Controls: what operators set at run time for a stream, a topic or a consumer."""

from __future__ import annotations

from typing import NamedTuple

from postroom.errors import ConfigError
from postroom.model.text import check_setting

STREAM, TOPIC, CONSUMER = KINDS = ("stream", "topic", "consumer")
MAX_NAME_BYTES = 255
MIN_PER_SECOND, MAX_PER_SECOND, MAX_IN_FLIGHT = 0.001, 1_000_000, 1_000_000


class Control(NamedTuple):
    """A row of the table `control`.

    paused      whether it is paused now, by the store's clock
    paused_us   when the last pause began
    until_us    when it ends unless it is resumed; None: never
    max_per_second, max_in_flight    its limits, of all relays together; None: no limit
    """

    kind: str
    name: str
    paused: bool
    paused_us: int | None = None
    until_us: int | None = None
    max_per_second: float | None = None
    max_in_flight: int | None = None
    reason: str = ""
    who: str = ""
    changed_us: int = 0

    @property
    def limited(self) -> bool:
        """Whether it has a limit."""
        return self.max_per_second is not None or self.max_in_flight is not None

    @property
    def limits(self) -> str:
        """Its limits in words."""
        return limits_text(self.max_per_second, self.max_in_flight)

    @property
    def command(self) -> str:
        """The command that ends the pause."""
        option = "" if self.kind == STREAM else f"--{self.kind} "
        return f"postroom resume {option}{self.name}"


def limits_text(per_second: float | None, in_flight: int | None) -> str:
    """Return limits in words."""
    rate = [] if per_second is None else [f"{per_second:g} per second"]
    most = [] if in_flight is None else [f"{in_flight} in flight"]
    return ", ".join(rate + most) or "no limit"


def check_limits(kind: str, name: str, per_second: float | None, in_flight: int | None) -> None:
    """Raise ConfigError unless these limits can be set for this stream or topic."""
    check_control(kind, name)
    if kind == CONSUMER:
        raise ConfigError("a limit is for a stream or a topic, not for a consumer")
    if per_second is not None and not MIN_PER_SECOND <= per_second <= MAX_PER_SECOND:
        raise ConfigError(
            f"a limit per second is between {MIN_PER_SECOND:g} and {MAX_PER_SECOND:,}, not "
            f"{per_second:g}; to send nothing, use postroom pause"
        )
    if in_flight is not None and not 1 <= in_flight <= MAX_IN_FLIGHT:
        raise ConfigError(
            f"a limit of events in flight is between 1 and {MAX_IN_FLIGHT:,}, not {in_flight}; to "
            "send nothing, use postroom pause"
        )


def check_control(kind: str, name: str) -> None:
    """Raise ConfigError unless a control can have this kind and name."""
    if kind not in KINDS:
        raise ConfigError(f"a control is for a {', '.join(KINDS)}, not for {kind!r}")
    check_setting(kind, name, MAX_NAME_BYTES)
