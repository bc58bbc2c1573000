"""The port for watching: what happened, told after the write that made it true."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from postroom.record import Record

_log = logging.getLogger(__name__)


class Settled(NamedTuple):
    """A settle was committed."""

    stream: str
    done: int
    failed: int
    dead: int
    fenced: int  # outcomes that were thrown away because their lane was lost: they will be repeated
    parked: int


class Attempt(NamedTuple):
    """One event was not confirmed (S4.9)."""

    stream: str
    id: str
    type: str
    topic: str
    verdict: str
    attempts: int
    error: str


class LanesChanged(NamedTuple):
    """Lanes changed hands. `change` is taken, released or lost."""

    stream: str
    owner: str
    change: str
    lanes: tuple[int, ...]


class BreakerChanged(NamedTuple):
    """The destination of a stream went away, or came back."""

    stream: str
    state: str
    error: str


class Alarm(NamedTuple):
    """Something needs a person: an exhausted event that blocks its key, a wrong configuration."""

    stream: str
    about: str
    error: str


class StoreTrouble(NamedTuple):
    """A call to the store failed; the relay goes on (S1.8)."""

    stream: str
    doing: str
    error: str


class Woken(NamedTuple):
    """What ended a wait for work: kick, change, poll or busy."""

    stream: str
    by: str


class Sent(NamedTuple):
    """A publish call has ended, whatever the outcomes; how long it took."""

    stream: str
    records: Sequence[Record]
    seconds: float


class Delivered(NamedTuple):
    """These events were settled as done; how long the settle took."""

    stream: str
    records: Sequence[Record]
    seconds: float


class Vanished(NamedTuple):
    """Events that this relay has read are not in the store any more.

    The database has lost their transactions: a fail-over to a replica that lagged, a restored
    backup, a crash with commits that did not wait for the disk. Most of them were sent.
    """

    stream: str
    ids: tuple[str, ...]


class EffectsLost(NamedTuple):
    """Handlers of these events had committed their effects, and the store has lost them since.

    As with `Vanished`, but here the events themselves are in the store: they are handled again.
    """

    stream: str
    ids: tuple[str, ...]


class Handled(NamedTuple):
    """A consumer has tried a message, whatever the verdict; how long it took, from its turn on."""

    stream: str
    type: str
    verdict: str
    seconds: float


Fact = (
    Settled
    | Attempt
    | LanesChanged
    | BreakerChanged
    | Alarm
    | StoreTrouble
    | Woken
    | Sent
    | Delivered
    | Vanished
    | EffectsLost
    | Handled
)


class Observer(Protocol):
    """Is told every fact. It must not block and must not raise."""

    def observe(self, fact: Fact) -> None: ...


def tell(observers: Iterable[Observer], fact: Fact) -> None:
    """Report a fact to all observers; one that raises must not stop a delivery half-way."""
    for observer in observers:
        try:
            observer.observe(fact)
        except Exception:
            _log.exception("an observer failed at %s", type(fact).__name__)
