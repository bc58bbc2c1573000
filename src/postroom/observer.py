"""Observer: the port for telemetry; facts are reported after the write that makes them true."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from postroom.record import Record

_log = logging.getLogger(__name__)


class Settled(NamedTuple):
    """A settle was committed."""

    stream: str
    done: int
    failed: int
    dead: int
    fenced: int  # outcomes discarded because their lane was lost: the events are sent again
    parked: int
    expired: int = 0
    held: int = 0  # not sent, because their topic is paused or at its limit; not failed


class Attempt(NamedTuple):
    """One event was not confirmed."""

    stream: str
    id: str
    type: str
    topic: str
    verdict: str
    attempts: int  # with this one, if it counts
    error: str
    traceback: str = ""  # masked


class Buried(NamedTuple):
    """An event or message has become a dead letter."""

    stream: str
    id: str
    type: str
    topic: str
    attempts: int
    error: str
    traceback: str = ""  # of the last attempt, masked


class LanesChanged(NamedTuple):
    """Lanes changed their owner.

    change    taken, released, lost (another relay has them), or recalled (an operator's command, or
              an expired lease, has freed them)
    before    the relay that held them before, if it is no longer running
    """

    stream: str
    owner: str
    change: str
    lanes: tuple[int, ...]
    before: str = ""


class LanesHeld(NamedTuple):
    """A relay waits: other relays hold all lanes. A lease that is not renewed ends within
    `seconds`.
    """

    stream: str
    lanes: int
    held_by: str
    seconds: float


class BreakerChanged(NamedTuple):
    """The destination of a stream became unreachable, or reachable again."""

    stream: str
    state: str
    error: str


class Alarm(NamedTuple):
    """An operator is needed: an exhausted event blocks its key, or the configuration is wrong.

    id           the event or message that it is about, which `about` contains
    is_logged    the error was logged with its traceback where it happened
    """

    stream: str
    about: str
    error: str
    id: str = ""
    is_logged: bool = False


class OtherHandlers(NamedTuple):
    """A live relay of the stream, or a consumer of the same name, has other handlers than this
    process: a new version, or another service.
    """

    stream: str
    relay: str


class Freed(NamedTuple):
    """A corrected configuration: one event was delivered, and those that waited with the same error
    are now due.
    """

    stream: str
    topic: str
    events: int
    error: str


class Summary(NamedTuple):
    """The counts of the last minute; only after a minute with traffic.

    counts         new since the last summary: done, failed, dead …
    lag_seconds    the greatest delivery lag that was seen; None if unknown
    """

    stream: str
    seconds: float
    counts: Mapping[str, int]
    lag_seconds: float | None


class StoreTrouble(NamedTuple):
    """A call to the store failed; the relay retries."""

    stream: str
    doing: str
    error: str


class StoreRecovered(NamedTuple):
    """A call to the store that had failed works again."""

    stream: str
    doing: str


class Woken(NamedTuple):
    """A wait for work ended, by kick, change, poll or busy."""

    stream: str
    by: str


class Sent(NamedTuple):
    """A publish call ended, whatever the outcomes; with its duration."""

    stream: str
    records: Sequence[Record]
    seconds: float


class Delivered(NamedTuple):
    """These events were settled as done; with the duration of the settle."""

    stream: str
    records: Sequence[Record]
    seconds: float


class Vanished(NamedTuple):
    """Events that this relay had read are no longer in the store.

    The database lost their transactions: a fail-over to a lagging replica, a restored backup, or a
    crash with asynchronous commits. Most of the events were sent.
    """

    stream: str
    ids: tuple[str, ...]


class EffectsLost(NamedTuple):
    """The store lost effects that handlers of these events had committed.

    As with `Vanished`, but the events themselves are still in the store: they are handled again.
    """

    stream: str
    ids: tuple[str, ...]


class ControlChanged(NamedTuple):
    """A pause began or ended that this relay obeys: of its stream, a topic, or its consumer."""

    stream: str
    kind: str
    name: str
    paused: bool
    until_us: int | None
    reason: str
    who: str


class LimitChanged(NamedTuple):
    """A limit that this relay obeys was set, changed or removed: of its stream or a topic."""

    stream: str
    kind: str
    name: str
    max_per_second: float | None
    max_in_flight: int | None


class Handled(NamedTuple):
    """A consumer processed a message, whatever the verdict; duration without queueing."""

    stream: str
    type: str
    verdict: str
    seconds: float


Fact = (
    Settled
    | Attempt
    | Buried
    | LanesChanged
    | LanesHeld
    | BreakerChanged
    | Alarm
    | OtherHandlers
    | Freed
    | Summary
    | StoreTrouble
    | StoreRecovered
    | Woken
    | Sent
    | Delivered
    | Vanished
    | EffectsLost
    | ControlChanged
    | LimitChanged
    | Handled
)


class Observer(Protocol):
    """Receives every fact. It must not block and must not raise."""

    def observe(self, fact: Fact) -> None: ...


def tell(observers: Iterable[Observer], fact: Fact) -> None:
    """Report a fact to all observers; one that raises must not stop a delivery half-way."""
    for observer in observers:
        try:
            observer.observe(fact)
        except Exception:
            _log.exception("an observer failed at %s", type(fact).__name__)
