"""State that the services of one relay share: store, destination, lanes, and counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from postroom.broker import Broker
from postroom.engine.breaker import Breaker
from postroom.engine.relay.in_flight import InFlight
from postroom.engine.relay.lane_groups import LaneGroups
from postroom.engine.relay.lanes import LaneKeeper
from postroom.engine.relay.limits import Limits
from postroom.engine.relay.paused import Paused
from postroom.engine.relay.prober import Corrections
from postroom.engine.relay.witnesses import Witnesses
from postroom.engine.service import is_cancelled
from postroom.engine.store_calls import StoreCalls
from postroom.errors import StoreError
from postroom.model.clock import Clock, host_microseconds
from postroom.model.controls import Control
from postroom.observer import BreakerChanged, Fact, LanesChanged, Observer, tell
from postroom.record import LANES, Record
from postroom.settings import RelaySettings
from postroom.store import Member, Membership, Store


@dataclass(slots=True)
class Counts:
    """Counters of a relay since its start."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    fenced: int = 0  # outcomes discarded because the lane was lost
    vanished: int = 0  # the database lost them after they were read
    expired: int = 0  # not sent before their `deliver_by`
    effects_lost: int = 0  # the database lost their handlers' commits
    repeated: int = 0  # confirmed but not settled: the destination will receive them again


class Vitals(NamedTuple):
    """The current state of a relay; `silent_seconds` is the time since its last heartbeat."""

    in_flight: int
    lanes: int
    breaker: str
    silent_seconds: float


@dataclass(slots=True)
class RelayContext:
    """State shared by a relay's services."""

    store: Store
    broker: Broker
    settings: RelaySettings
    keeper: LaneKeeper
    breaker: Breaker
    clock: Clock
    observers: tuple[Observer, ...]
    outbox_id: str = ""
    is_impaired: Callable[[], bool] | None = None  # unhealthy for another reason
    on_members: Callable[[Sequence[Member]], None] | None = None  # called at each heartbeat
    counts: Counts = field(default_factory=Counts)
    flights: list[InFlight] = field(default_factory=list)
    wakers: list[Callable[[], None]] = field(default_factory=list)
    stopping: bool = False
    events_seen: bool = False  # the stager saw ready events in our lanes
    beat_at: float = 0.0  # when the last heartbeat succeeded
    losses: int = 0  # how often lanes were lost
    unexplained: set[int] = field(default_factory=set)  # lost; the next heartbeat tells to whom
    lag_us: int | None = None  # the greatest delivery lag since the last summary
    paused: Paused = field(init=False)
    limits: Limits = field(init=False)
    allotment: LaneGroups = field(init=False)
    witnesses: Witnesses = field(init=False)
    store_calls: StoreCalls = field(init=False)
    corrections: Corrections = field(default_factory=Corrections)  # of the configuration, awaited
    given_up: dict[int, int] = field(default_factory=dict)  # lane → token: to be released
    lost_before: dict[str, None] = field(default_factory=dict)  # events whose effects were lost
    to_repair: set[int] = field(default_factory=set)  # lanes whose blocks need repair
    repair_blocks: asyncio.Event = field(default_factory=asyncio.Event)  # wakes the block repair
    repairing: bool = False
    beat_now: asyncio.Event = field(default_factory=asyncio.Event)  # the heartbeat should beat now
    topic_freed: asyncio.Event = field(default_factory=asyncio.Event)  # a topic's pause ended
    look_soon: asyncio.Event = field(default_factory=asyncio.Event)  # the stager should look sooner

    def __post_init__(self) -> None:
        self.paused = Paused(self.settings.stream, self.clock)
        self.limits = Limits(self.settings.stream, self.clock, self._share, self._topics_in_flight)
        self.allotment = LaneGroups(self.settings.groups)
        self.witnesses = Witnesses(self.settings.dedup_seconds / 2)
        self.store_calls = StoreCalls(self.tell)

    @property
    def stream(self) -> str:
        return self.settings.stream

    @property
    def owner(self) -> str:
        return self.keeper.owner

    @property
    def vitals(self) -> Vitals:
        return Vitals(
            sum(flight.waiting_for_outcomes for flight in self.flights),
            len(self.keeper.held),
            self.breaker.state,
            max(0.0, self.clock.monotonic() - self.beat_at),
        )

    def tell(self, fact: Fact) -> None:
        tell(self.observers, fact)

    def trouble(self, doing: str, error: BaseException) -> None:
        self.store_calls.failed(self.stream, doing, error)

    def recovered(self, doing: str) -> None:
        """Calls to the store whose name begins with this have succeeded."""
        self.store_calls.succeeded(self.stream, doing)

    def ask_to_repair(self, lanes: Collection[int]) -> None:
        """Ask for a repair of the blocks of these lanes."""
        if lanes:
            self.to_repair |= set(lanes)
            self.repair_blocks.set()

    def wake(self) -> None:
        """Wake the workers."""
        for waker in self.wakers:
            waker()

    def obey(self, controls: Sequence[Control]) -> None:
        """Obey the controls that were read; wakes the workers after a pause or a new limit."""
        freed = set(self.paused.freed)
        changes = self.paused.apply(controls)
        for change in changes:
            self.tell(change)
        limited, topics = self.limits.apply(controls)
        for limit in limited:
            self.tell(limit)
        self.paused.freed |= topics - self.paused.topics.keys()
        if limited or any(not change.paused for change in changes):
            self.look_soon.set()
            self.wake()
        if self.paused.freed - freed:
            self.topic_freed.set()

    def _share(self) -> float:
        """Return the relay's part of the stream: the lanes that it sends from."""
        return sum(not held.draining for held in self.keeper.held.values()) / LANES

    def _topics_in_flight(self) -> Iterator[str]:
        for flight in self.flights:
            yield from flight.topics()

    def may_publish(self, lane: int) -> bool:
        return self.keeper.may_publish(lane, self.clock.monotonic())

    def lose(self, lanes: Collection[int]) -> None:
        """These lanes are no longer ours: nothing of them may be settled.

        The next heartbeat, which comes at once, learns which relay has them.
        """
        if not lanes:
            return
        self.losses += 1
        self.keeper.drop(lanes)
        self.witnesses.forget(lanes)
        for flight in self.flights:
            flight.forget(lanes)
        self.unexplained |= set(lanes)
        self.beat_now.set()

    def explain_losses(self, membership: Membership) -> None:
        """Report the lanes that were lost: to another relay, or only recalled."""
        if not self.unexplained:
            return
        lanes, self.unexplained = self.unexplained, set()
        others = {e.lane for e in membership.leases if e.live and e.owner != self.owner}
        for change, which in (("lost", lanes & others), ("recalled", lanes - others)):
            if which:
                self.tell(LanesChanged(self.stream, self.owner, change, tuple(sorted(which))))

    def note_lag(self, first: Record) -> None:
        """Note the delivery lag of the first event of a settle, for the next summary."""
        lag = host_microseconds() - (first.next_attempt_us or first.created_us)
        self.lag_us = max(self.lag_us or 0, lag)

    def take_lag(self) -> float | None:
        """Return the greatest lag since the last call, in seconds."""
        lag, self.lag_us = self.lag_us, None
        return None if lag is None else lag / 1_000_000

    def busy_lanes(self) -> set[int]:
        return set[int]().union(*(flight.busy_lanes() for flight in self.flights))

    async def release_drained(self) -> None:
        """Hand over lanes that are being released and have nothing in flight (L4)."""
        drained = self.keeper.drained(self.busy_lanes)
        if drained:
            self.keeper.drop(drained)
            self.witnesses.forget(drained)
            await self.store.release(self.stream, self.owner, drained)
            self.tell(LanesChanged(self.stream, self.owner, "released", tuple(sorted(drained))))

    async def release_given_up(self) -> None:
        """Release the lanes that this relay gave up itself, for any relay to take.

        A lane that cannot be released because its row is locked expires, since it is not renewed.
        """
        lanes, self.given_up = self.given_up, {}
        if lanes:
            try:
                await self.store.release(self.stream, self.owner, lanes)
            except StoreError as error:
                self.trouble("releasing lanes", error)
            else:
                self.recovered("releasing lanes")
                self.beat_now.set()

    def outage(self, error: str) -> None:
        if self.breaker.outage(error, self.clock.monotonic()):
            self.tell(BreakerChanged(self.stream, "open", error))
            self.beat_now.set()

    def answered(self) -> None:
        if self.breaker.answered():
            self.tell(BreakerChanged(self.stream, "closed", ""))
            self.beat_now.set()
            self.wake()

    async def destination_answers(self) -> bool:
        """Check whether the destination is reachable."""
        try:
            async with asyncio.timeout(self.settings.publish_seconds):
                await self.broker.health()
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return False
        except Exception:
            return False
        return True

    def count(self, done: int, failed: int, dead: int, fenced: int) -> None:
        self.counts.done += done
        self.counts.failed += failed
        self.counts.dead += dead
        self.counts.fenced += fenced
        self.recount()

    def recount(self) -> None:
        """Count outcomes that were discarded with a lost lane, which are never settled."""
        self.counts.repeated = sum(flight.repeats for flight in self.flights)
