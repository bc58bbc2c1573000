"""Lane ownership: the decisions, without input or output.

The input is the result of a heartbeat and the time it was requested; the output are lanes to take,
lanes that were lost, and lanes to hand over. No clock is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from postroom.record import LANES
from postroom.store import Membership

_SAFE_PART = 0.9  # of a lease, counted from before its request: the rest covers clock drift


@dataclass(slots=True)
class Held:
    """A lane that is ours at least until `deadline` on the local clock."""

    token: int
    deadline: float
    draining: bool = False


class Plan(NamedTuple):
    """The actions after a heartbeat."""

    take: list[int]  # lanes to take
    lost: list[int]  # no longer ours: nothing of them may be settled
    abandon: dict[
        int, int
    ]  # lane → token: release now, work on it is stuck and another relay is healthy


def fair_share(owner: str, healthy: bool, membership: Membership) -> int:
    """Return how many lanes this relay should hold.

    Healthy members share all lanes; the first in sort order get the remainder. A relay whose
    destination is unreachable gets none while another is healthy; if none is, all share.
    """
    others = [m for m in membership.members if m.owner != owner]
    if not healthy and any(m.healthy for m in others):
        return 0
    counted = sorted([owner, *(m.owner for m in others if m.healthy or not healthy)])
    each, odd = divmod(LANES, len(counted))
    return each + (counted.index(owner) < odd)


class LaneKeeper:
    """The lanes of one relay in one stream."""

    def __init__(self, owner: str, lease_seconds: float) -> None:
        self.owner = owner
        self.lease_seconds = lease_seconds
        self.held: dict[int, Held] = {}
        self.below_share = True  # holds less than its share: worth another look soon
        self._retaking: set[int] = set()  # lanes whose new token is about to arrive

    def tokens(self, lanes: Iterable[int] | None = None) -> dict[int, int]:
        """Return lane → token of these lanes, or of all held lanes."""
        wanted = self.held if lanes is None else lanes
        return {lane: self.held[lane].token for lane in wanted if lane in self.held}

    def consider(
        self,
        membership: Membership,
        asked_at: float,
        *,
        healthy: bool = True,
        leaving: bool = False,
        stuck: Collection[int] = (),
    ) -> Plan:
        """Process a heartbeat that was requested at `asked_at` and decide what to do."""
        deadline = asked_at + self.lease_seconds * _SAFE_PART
        leases = {lease.lane: lease for lease in membership.leases}
        lost = []
        for lane, held in list(self.held.items()):
            lease = leases[lane]
            saw_the_past = lease.token < held.token and deadline <= held.deadline
            if saw_the_past or lane in self._retaking:
                continue  # re-taken while this heartbeat was running
            if lease.owner == self.owner and lease.token == held.token and lease.live:
                if lane in membership.renewed:
                    held.deadline = max(
                        held.deadline, deadline
                    )  # otherwise locked: it keeps its token
            else:
                del self.held[lane]  # a restored store has lower tokens, too
                lost.append(lane)

        abandon: dict[int, int] = {}
        if any(m.healthy and m.owner != self.owner for m in membership.members):
            abandon = {n: self.held.pop(n).token for n in stuck if n in self.held}

        share = 0 if leaving else fair_share(self.owner, healthy, membership)
        staying = sorted(lane for lane, held in self.held.items() if not held.draining)
        take: list[int] = []
        if len(staying) > share:
            for lane in staying[share:]:
                self.held[lane].draining = True
        elif len(staying) < share:
            for lane in sorted(self.held):
                if self.held[lane].draining and len(staying) < share:
                    self.held[lane].draining = False
                    staying.append(lane)
            free = [n for n, seen in leases.items() if not seen.live and n not in self.held]
            rank = sum(m.owner < self.owner for m in membership.members)
            free.sort(
                key=lambda lane: (lane - rank * share) % LANES
            )  # so that two relays do not race
            take = free[: share - len(staying)]
        self.below_share = len(staying) < share
        return Plan(take, lost, abandon)

    def taken(self, tokens: Mapping[int, int], asked_at: float) -> None:
        """Lanes were taken (or re-taken) with these tokens."""
        deadline = asked_at + self.lease_seconds * _SAFE_PART
        for lane, token in tokens.items():
            draining = lane in self.held and self.held[lane].draining
            self.held[lane] = Held(token, deadline, draining)

    @contextmanager
    def retaking(self, lanes: Collection[int]) -> Iterator[None]:
        """While new tokens are asked for, no heartbeat decides that these lanes are lost."""
        self._retaking |= set(lanes)
        try:
            yield
        finally:
            self._retaking -= set(lanes)

    def drop(self, lanes: Iterable[int]) -> None:
        """These lanes were lost or released."""
        for lane in lanes:
            self.held.pop(lane, None)

    def may_publish(self, lane: int, now: float, token: int | None = None) -> bool:
        """Return whether work on the lane may start: it is held (with this token, if one is given),
        not being handed over, and not past its deadline.
        """
        held = self.held.get(lane)
        if held is None or held.draining or now >= held.deadline:
            return False
        return token is None or held.token == token

    def stalled(self, now: float) -> list[int]:
        """Return the lanes that are ours but were not renewed in time: nothing of them may be sent
        until they are.
        """
        return sorted(lane for lane, held in self.held.items() if now >= held.deadline)

    def readable(self, now: float) -> list[int]:
        """Return the lanes that may be read now."""
        return [lane for lane in self.held if self.may_publish(lane, now)]

    def drained(self, busy: Callable[[], Collection[int]]) -> dict[int, int]:
        """Return lane → token of the lanes to hand over that have nothing in flight any more."""
        leaving = {lane: held.token for lane, held in self.held.items() if held.draining}
        if leaving:
            for lane in busy():
                leaving.pop(lane, None)
        return leaving
