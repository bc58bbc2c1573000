"""What a mutant is."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    rule: str
    story: str
    plant: Callable[[], None]
    sim: tuple[str, ...] | None = ()  # () no simulation
    tests: tuple[str, ...] = ()
