"""The tender keeps a relay's lanes: it beats, takes, renews, hands over (L1, L4, L6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf

from postroom.clock import Clock
from postroom.engine.office import Office, wait_for
from postroom.engine.pauses import Pauses
from postroom.engine.service import Service
from postroom.errors import StoreConflictError, StoreError
from postroom.observer import Alarm, Lanes
from postroom.store import Member, Roster

_HUNG_LEASES = 3  # work that is older than so many leases is given to another relay
_FIRST_PAUSE = 0.05
_ORPHAN_LEASES = 3
_MEND_EVERY = 20  # beats


class Patience:
    """Asks the store although it fails now and then; the error is raised after so many seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._since: float | None = None
        self._pause = _FIRST_PAUSE

    async def ask(self, question: Callable[[], Awaitable[bool]]) -> bool:
        """Return the answer; False, after a growing pause, if there was none."""
        try:
            answer = await question()
        except StoreError:
            now = self._clock.monotonic()
            self._since = now if self._since is None else self._since
            if now - self._since > self._seconds:
                raise
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, 1.0)
            return False
        self._since, self._pause = None, _FIRST_PAUSE
        return answer


class Tender(Service):
    """Beats at a third of the lease; sooner while it holds less than its share."""

    def __init__(self, office: Office) -> None:
        super().__init__()
        self._office = office
        self._beats = 0
        self.settled_in = False  # has held its share at least once, or nothing was free
        office.beat_at = office.clock.monotonic()
        self.error: StoreError | None = None  # of the last beat
        self._stalled: list[int] = []
        self._orphans_since: float | None = None

    async def loop(self) -> None:
        office = self._office
        lease = office.settings.lease_seconds
        longest = min(lease / 10, 1.0)  # many attempts within a lease, however long it fails
        pauses = Pauses(min(_FIRST_PAUSE, longest), longest)
        while True:
            office.hurry.clear()
            began = office.clock.monotonic()
            try:
                await self.beat()
                office.beat_at, self.error = office.clock.monotonic(), None
                pauses.reset()
                # From beginning to beginning: a lease counts from when it was asked for.
                rest = lease / 3 - (office.beat_at - began)
                pause = lease / 10 if office.keeper.hungry else max(rest, lease / 10)
            except StoreError as error:
                self.error = error
                office.trouble("renewing leases", error)
                await asyncio.sleep(pauses.grow())  # nobody makes it fail more often by a hurry
            else:
                await wait_for(office.hurry, pause)

    async def beat(self) -> None:
        """Show up, renew, look around, act."""
        office, keeper = self._office, self._office.keeper
        if not office.breaker.is_closed and not keeper.held:
            await self._ask_destination()
        stream, owner, lease = office.stream, office.owner, office.settings.lease_seconds
        asked_at = office.clock.monotonic()
        hung = self._hung_lanes(asked_at)
        # Work that hangs makes a relay unwell: else it would take back at once what it gives up.
        # One who leaves is, too: what he gives back is not for him.
        healthy = office.breaker.is_closed and not hung and not office.stopping
        member = Member(owner, healthy, office.settings.name)
        roster = await office.store.beat(stream, member, lease, keeper.tokens())
        plan = keeper.consider(
            roster, asked_at, healthy=healthy, leaving=office.stopping, hung=hung
        )
        office.lose(plan.lost)
        await office.release_given_up()
        self._tell_stalled()
        self._tell_orphans(roster, asked_at)
        if plan.abandon:
            office.lose(plan.abandon)
            await office.store.release(stream, owner, plan.abandon)
        if plan.take and not office.stopping:
            await self._take(plan.take)
        self._beats += 1
        if self._beats % _MEND_EVERY == 0:
            office.ask_to_mend(keeper.held)
        await office.release_drained()
        self.settled_in = True

    def _tell_stalled(self) -> None:
        """Say once which lanes stand still because another transaction has locked them."""
        office = self._office
        stalled = office.keeper.stalled(office.clock.monotonic())
        if stalled and stalled != self._stalled:
            lanes = ", ".join(map(str, stalled))
            error = StoreConflictError(
                f"lanes {lanes} are locked by another transaction and stand still until it ends; "
                "look for an open transaction in the database"
            )
            office.trouble("renewing leases", error)
        self._stalled = stalled

    def _tell_orphans(self, roster: Roster, now: float) -> None:
        """Raise an alarm if lanes stay with an owner that is not among the live members."""
        office = self._office
        alive = {office.owner, *(member.owner for member in roster.members)}
        orphans = [f.lane for f in roster.leases if f.live and f.owner not in alive]
        if not orphans:
            self._orphans_since = None
        elif self._orphans_since is None:
            self._orphans_since = now
        elif now - self._orphans_since > _ORPHAN_LEASES * office.settings.lease_seconds:
            self._orphans_since = inf  # said once
            lanes = ", ".join(map(str, orphans))
            about = f"lanes {lanes} are held by a relay that is not alive"
            hint = "restart that relay, or free them: see PostroomLaneWithoutOwner in the runbook"
            office.tell(Alarm(office.stream, about, hint))

    def _hung_lanes(self, now: float) -> set[int]:
        settings = self._office.settings  # what has a time limit of its own gets its chance first
        lease, limit = settings.lease_seconds, settings.publish_seconds
        before = now - max(_HUNG_LEASES * lease, limit + lease)
        hung = set[int]()
        for flight in self._office.flights:
            flight.note_progress(now)
            hung |= flight.hung_lanes(before)
        return hung

    async def _ask_destination(self) -> None:
        """Without a lane there is no event to try with: ask, or this relay stays unwell."""
        office = self._office
        lost_its_try = office.breaker.state == "trying"  # with the lane of what was tried
        if lost_its_try or office.clock.monotonic() >= office.breaker.retry_at:
            if await office.destination_answers():
                office.answered()
            elif not office.breaker.is_closed:  # what was tried may have told better meanwhile
                office.breaker.failed_again(office.clock.monotonic())

    async def _take(self, lanes: list[int]) -> None:
        office, keeper = self._office, self._office.keeper
        asked_at = office.clock.monotonic()
        taken = await office.store.take(
            office.stream, office.owner, lanes, office.settings.lease_seconds
        )
        if not taken:
            return
        keeper.taken(taken, asked_at)
        office.tell(Lanes(office.stream, office.owner, "taken", tuple(sorted(taken))))
        office.ask_to_mend(taken)
        office.wake()
