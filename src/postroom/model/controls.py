"""Controls: what operators set at run time for a stream, a topic or a consumer."""

from __future__ import annotations

from typing import NamedTuple

from postroom.errors import ConfigError
from postroom.model.text import check_setting

STREAM, TOPIC, CONSUMER = KINDS = ("stream", "topic", "consumer")
MAX_NAME_BYTES = 255


class Control(NamedTuple):
    """A row of the table `control`.

    paused      whether it is paused now, by the store's clock
    paused_us   when the last pause began
    until_us    when it ends unless it is resumed; None: never
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
    def command(self) -> str:
        """The command that ends the pause."""
        option = "" if self.kind == STREAM else f"--{self.kind} "
        return f"postroom resume {option}{self.name}"


def check_control(kind: str, name: str) -> None:
    """Raise ConfigError unless a control can have this kind and name."""
    if kind not in KINDS:
        raise ConfigError(f"a control is for a {', '.join(KINDS)}, not for {kind!r}")
    check_setting(kind, name, MAX_NAME_BYTES)
