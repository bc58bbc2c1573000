"""The tender keeps a relay's lanes: it beats, takes, renews, hands over (L1, L4, L6)."""

from __future__ import annotations

from postroom.engine.office import Office, wait_for
from postroom.engine.service import Service
from postroom.errors import StoreError
from postroom.observer import Lanes
from postroom.store import Member

_HUNG_LEASES = 3  # work that is older than so many leases is given to another relay
_MEND_STEP = 100
_MEND_EVERY = 20  # beats


class Tender(Service):
    """Beats at a third of the lease; sooner while it holds less than its share."""

    def __init__(self, office: Office) -> None:
        super().__init__()
        self._office = office
        self._beats = 0
        self.settled_in = False  # has held its share at least once, or nothing was free
        office.beat_at = office.clock.monotonic()
        self.error: StoreError | None = None  # of the last beat

    async def loop(self) -> None:
        office = self._office
        lease = office.settings.lease_seconds
        while True:
            office.hurry.clear()
            began = office.clock.monotonic()
            try:
                await self.beat()
                office.beat_at, self.error = office.clock.monotonic(), None
                # From beginning to beginning: a lease counts from when it was asked for.
                rest = lease / 3 - (office.beat_at - began)
                pause = lease / 10 if office.keeper.hungry else max(rest, lease / 10)
            except StoreError as error:
                self.error = error
                office.trouble("renewing leases", error)
                pause = min(lease / 10, 1.0)
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
        if plan.abandon:
            office.lose(plan.abandon)
            await office.store.release(stream, owner, plan.abandon)
        if plan.take and not office.stopping:
            await self._take(plan.take)
        self._beats += 1
        if self._beats % _MEND_EVERY == 0:
            await self._mend(keeper.tokens())
        await office.release_drained()
        self.settled_in = True

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
        await self._mend(taken)
        office.wake()

    async def _mend(self, tokens: dict[int, int]) -> None:
        office = self._office
        while tokens and (
            await office.store.mend(office.stream, office.owner, tokens, _MEND_STEP) == _MEND_STEP
        ):
            pass
