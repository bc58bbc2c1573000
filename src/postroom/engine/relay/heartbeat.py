"""The heartbeat keeps a relay's lanes: it beats, takes, renews and hands over (L1, L4, L6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from math import inf

from postroom.engine.relay.context import RelayContext
from postroom.engine.service import Service, wait_for
from postroom.errors import StoreError, StoreRetryableError
from postroom.model.clock import Clock
from postroom.model.pauses import Pauses
from postroom.observer import Alarm, LanesChanged, LanesHeld
from postroom.store import Member, Membership

_HUNG_LEASES = 3  # leases; work older than this is given to another relay
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_ORPHAN_LEASES = 3
_MEND_EVERY = 20  # beats


class Patience:
    """Calls the store and tolerates failures; the error is raised after this many seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._since: float | None = None
        self._pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)

    async def ask(self, request: Callable[[], Awaitable[bool]]) -> bool:
        """Return the answer; False, after a growing pause, if there was none."""
        try:
            answer = await request()
        except StoreError:
            now = self._clock.monotonic()
            self._since = now if self._since is None else self._since
            if now - self._since > self._seconds:
                raise
            await asyncio.sleep(self._pauses.grow())
            return False
        self._since = None
        self._pauses.reset()
        return answer


class Heartbeat(Service):
    """Beats at a third of the lease; sooner while the relay holds less than its share."""

    def __init__(self, context: RelayContext) -> None:
        super().__init__()
        self._context = context
        self._beats = 0
        self.not_taken: list[int] = []  # lanes that were free and could not be taken
        self._losses = -1  # of lanes, up to the last heartbeat
        context.beat_at = context.clock.monotonic()
        self.error: StoreError | None = None  # of the last heartbeat
        self._stalled: list[int] = []
        self._between_beats = asyncio.Event()
        self._between_beats.set()
        self._is_over = False
        self._orphans_since: float | None = None
        self._waits_for: set[str | None] = set()
        self._names: dict[str, str] = {}  # of members seen, also of those that are gone

    @property
    def settled_in(self) -> bool:
        """Whether every lane that this relay may have is held: none is free, and none was lost
        since the last heartbeat.
        """
        return self._losses == self._context.losses and not self.not_taken

    async def loop(self) -> None:
        context = self._context
        lease = context.settings.lease_seconds
        longest = min(lease / 10, _LONGEST_PAUSE)  # many attempts within a lease
        pauses = Pauses(min(_FIRST_PAUSE, longest), longest)
        while not self._is_over:
            context.beat_now.clear()
            began = context.clock.monotonic()
            try:
                await self._beat()
                context.recovered("renewing leases")
                context.beat_at, self.error = context.clock.monotonic(), None
                pauses.reset()
                # Measured from start to start: a lease counts from its request.
                rest = lease / 3 - (context.beat_at - began)
                pause = lease / 10 if context.keeper.below_share else max(rest, lease / 10)
            except StoreError as error:
                self.error = error
                context.trouble("renewing leases", error)
                await asyncio.sleep(pauses.grow())  # whatever sets beat_now
            else:
                await wait_for(context.beat_now, pause)

    async def _beat(self) -> None:
        self._between_beats.clear()
        try:
            await self.heartbeat()
        finally:
            self._between_beats.set()

    async def finish(self) -> None:
        """Start no more heartbeats, and wait for the end of the one under way.

        A server may still execute the statement of a cancelled one: it would take lanes, or renew
        the member, after the relay has left.
        """
        self._is_over = True
        await self._between_beats.wait()

    async def heartbeat(self) -> None:
        """Beat, renew, read the membership, take or release lanes."""
        context, keeper = self._context, self._context.keeper
        if not context.breaker.is_closed and not keeper.held:
            await self._ask_destination()
        stream, owner, lease = context.stream, context.owner, context.settings.lease_seconds
        asked_at = context.clock.monotonic()
        stuck = self._hung_lanes(asked_at)
        # A relay with stuck work, or one that is stopping, reports itself unhealthy, so that it
        # does not re-take the lanes it gives up.
        healthy = context.breaker.is_closed and not stuck and not context.stopping
        if context.is_impaired is not None and context.is_impaired():
            healthy = False
        member = Member(owner, healthy, context.settings.name)
        membership = await context.store.heartbeat(stream, member, lease, keeper.tokens())
        if context.on_members is not None:
            context.on_members(membership.members)
        plan = keeper.consider(
            membership, asked_at, healthy=healthy, leaving=context.stopping, stuck=stuck
        )
        context.lose(plan.lost)
        context.explain_losses(membership)
        await context.release_given_up()
        self._tell_stalled()
        self._tell_orphans(membership, asked_at)
        if plan.abandon:
            context.lose(plan.abandon)
            await context.store.release(stream, owner, plan.abandon)
        losses = context.losses
        self._learn_names(membership)
        take = plan.take and not context.stopping
        taken = await self._take(plan.take, membership) if take else {}
        self._tell_waiting(membership)
        self._beats += 1
        if self._beats % _MEND_EVERY == 0:
            context.ask_to_repair(keeper.held)
        await context.release_drained()
        self.not_taken, self._losses = [n for n in plan.take if n not in taken], losses

    def _tell_stalled(self) -> None:
        """Log once which lanes make no progress because another transaction has locked them."""
        context = self._context
        stalled = context.keeper.stalled(context.clock.monotonic())
        if stalled and stalled != self._stalled:
            lanes = ", ".join(map(str, stalled))
            error = StoreRetryableError(
                f"lanes {lanes} are locked by another transaction and make no progress until "
                "it ends; look for an open transaction in the database"
            )
            context.trouble("renewing locked lanes", error)
        elif not stalled:
            context.recovered("renewing locked lanes")
        self._stalled = stalled

    def _learn_names(self, membership: Membership) -> None:
        """Remember the names of members while a lane is in their name, also after their end."""
        names = self._names | {m.owner: m.name or m.owner for m in membership.members}
        owners = {e.owner for e in membership.leases} | {m.owner for m in membership.members}
        self._names = {owner: name for owner, name in names.items() if owner in owners}

    def _tell_waiting(self, membership: Membership) -> None:
        """Report once, for each set of owners, that other relays hold all lanes."""
        context = self._context
        owners = {e.owner for e in membership.leases if e.live and e.owner != context.owner}
        if context.keeper.held or context.stopping or not context.keeper.below_share:
            owners = set()
        if owners and owners != self._waits_for:
            names = ", ".join(sorted(self._names.get(each or "", each or "") for each in owners))
            held = sum(lease.live for lease in membership.leases)
            lease = context.settings.lease_seconds
            context.tell(LanesHeld(context.stream, held, names, lease))
        self._waits_for = owners

    def _before(self, taken: Collection[int], membership: Membership) -> str:
        """Return the relays that held these lanes and are not running any more."""
        alive = {self._context.owner, *(each.owner for each in membership.members)}
        gone = {e.owner for e in membership.leases if e.lane in taken and e.owner not in alive}
        return ", ".join(sorted(self._names.get(each, each) for each in gone if each))

    def _tell_orphans(self, membership: Membership, now: float) -> None:
        """Raise an alarm if lanes stay with an owner that is not among the live members."""
        context = self._context
        alive = {context.owner, *(member.owner for member in membership.members)}
        orphans = [f.lane for f in membership.leases if f.live and f.owner not in alive]
        if not orphans:
            self._orphans_since = None
        elif self._orphans_since is None:
            self._orphans_since = now
        elif now - self._orphans_since > _ORPHAN_LEASES * context.settings.lease_seconds:
            self._orphans_since = inf  # logged once
            lanes = ", ".join(map(str, orphans))
            about = f"lanes {lanes} are held by a relay that is no longer running"
            hint = "restart that relay, or free them: see PostroomLaneWithoutOwner in the runbook"
            context.tell(Alarm(context.stream, about, hint))

    def _hung_lanes(self, now: float) -> set[int]:
        settings = self._context.settings  # work with its own time limit gets its chance first
        lease, limit = settings.lease_seconds, settings.publish_seconds
        before = now - max(_HUNG_LEASES * lease, limit + lease)
        stuck = set[int]()
        for flight in self._context.flights:
            flight.note_progress(now)
            stuck |= flight.hung_lanes(before)
        return stuck

    async def _ask_destination(self) -> None:
        """Without a lane there is no event to try with: ask the destination, or this relay stays
        unhealthy.
        """
        context = self._context
        lost_its_try = context.breaker.state == "trying"  # with the event's lane
        if lost_its_try or context.clock.monotonic() >= context.breaker.retry_at:
            if await context.destination_answers():
                context.answered()
            elif not context.breaker.is_closed:  # no answer meanwhile
                context.breaker.failed_again(context.clock.monotonic())

    async def _take(self, lanes: list[int], membership: Membership) -> Mapping[int, int]:
        context, keeper = self._context, self._context.keeper
        asked_at = context.clock.monotonic()
        taken = await context.store.take(
            context.stream, context.owner, lanes, context.settings.lease_seconds
        )
        if not taken:
            return taken
        keeper.taken(taken, asked_at)
        before = self._before(taken, membership)
        lanes_taken = tuple(sorted(taken))
        context.tell(LanesChanged(context.stream, context.owner, "taken", lanes_taken, before))
        context.ask_to_repair(taken)
        context.wake()
        return taken
