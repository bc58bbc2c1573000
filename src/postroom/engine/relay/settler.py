"""The settler writes outcomes, and isolates those that the store refuses.

Usually a settlement is one call of the store. If that fails, the error decides:

- a conflict, or an unreachable store: the same call again, with growing pauses;
- rows that another transaction has locked: each lane separately; a lane that is still locked is
  set aside and retried in the background, while the others go on;
- an unknown outcome: the lanes are re-taken, then the same call (L5);
- values that the store refuses: bisect the keys until the event is found. It becomes a dead
  letter. If even that is refused, an alarm names it, and its key is set aside.

If the store has lost the effect of a handler that this relay remembers as done, the settler changes
nothing in that lane. The event is released, its attempt does not count, and the lane is given up:
the relay that takes it next reads what the database holds, in order, and handles it again.

A failed settle never causes another publish.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial

from postroom.engine.relay.context import RelayContext
from postroom.engine.relay.in_flight import InFlight
from postroom.engine.relay.pending_settle import PendingSettle
from postroom.engine.service import end, wait_for
from postroom.errors import StoreError, StoreLockedError, StoreRefusedError, StoreRetryableError
from postroom.model.history import attempt
from postroom.model.pauses import Pauses
from postroom.observer import Alarm, Buried, Delivered, EffectsLost, Settled, Vanished
from postroom.record import LANES, Record, short_error
from postroom.settlement import DeadOutcome, Settlement

_ALL_LANES = frozenset(range(LANES))
_SHORTEST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_DRIFT = 1.05  # between the local clock and the store's
_DOUBT_SECONDS = 1.0
_MOST_REMEMBERED = 10_000


class Settler:
    """Writes the settles of one group of events in flight."""

    def __init__(self, context: RelayContext, flight: InFlight) -> None:
        self._context = context
        self._flight = flight
        self._hasten = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lanes: Counter[int] = Counter()  # locked: nothing of them is settled or read
        self._keys: Counter[bytes] = Counter()  # with an event that the store refuses

    @property
    def has_aside(self) -> bool:
        """Return whether something was set aside and is retried in the background."""
        return bool(self._tasks)

    def is_locked(self, lane: int) -> bool:
        """Return whether another transaction keeps the outcomes of this lane from being written."""
        return self._lanes[lane] > 0

    def keys_aside(self) -> list[bytes]:
        """Return the keys of events set aside: if read again, they would be set aside again."""
        return [key for key, count in self._keys.items() if count > 0]

    def hasten(self) -> None:
        """Retry everything set aside a last time: the relay stops."""
        self._hasten.set()

    async def stop(self) -> None:
        await end(*self._tasks)

    async def settle(self, pending: PendingSettle) -> None:
        """Write a settle; returns when all of it is written or set aside."""
        if self._tasks:
            aside, pending = pending.part(
                lambda r: self._lanes[r.lane] > 0 or self._keys[r.key_hash] > 0
            )
            if aside.settlement or aside.closing:
                self._set_aside(aside, {lane for lane in aside.lanes if self._lanes[lane] > 0})
        await self._write(pending)

    # -- writing ------------------------------------------------------------------------------
    async def _write(self, pending: PendingSettle, *, tell: bool = True) -> None:
        context = self._context
        began, leases = context.clock.monotonic(), pending.settlement.leases
        try:
            held = await self._commit(pending.settlement) if pending.settlement else _ALL_LANES
        except StoreLockedError as error:
            if tell:
                context.trouble("settling (each lane separately)", error)
            await self._each_lane(pending)
        except StoreRefusedError as error:
            if tell:
                context.trouble("settling (looking for the refused event)", error)
            await self._find_refused(pending)
        else:
            repeated = pending.settlement.leases is not leases
            self._written(pending, held, context.clock.monotonic() - began, repeated=repeated)

    async def _commit(self, settlement: Settlement) -> set[int]:
        """Write a settlement, however long it takes; returns the lanes that were held.

        Raises StoreLockedError and StoreRefusedError. If it is unknown whether it was committed,
        the lanes are re-taken, which fences or awaits the lost transaction, and the same settlement
        is written under the new tokens (L5).
        """
        context = self._context
        pauses, began = Pauses(_SHORTEST_PAUSE, _LONGEST_PAUSE), context.clock.monotonic()
        while True:
            try:
                held = await context.store.settle(settlement)
            except (StoreLockedError, StoreRefusedError):
                raise
            except StoreRetryableError as error:
                context.trouble("settling (will repeat)", error)
            except StoreError as error:
                context.trouble("settling (outcome unknown)", error)
                await self._retake(settlement, began)
            else:
                context.recovered("settling")
                await self._give_up_lost(settlement)
                return held
            await asyncio.sleep(pauses.grow())

    async def _give_up_lost(self, settlement: Settlement) -> None:
        """Release the events whose effects the store has lost, and give up their lanes.

        An event whose effect is lost a second time keeps its attempt: if something deletes inbox
        rows as soon as they are written, the event must not be handled endlessly.
        """
        if not settlement.lost:
            return
        context = self._context
        lanes = {claim.lane for claim in settlement.lost}
        ids = dict.fromkeys(claim.id for claim in settlement.lost)
        fresh = ids.keys() - context.lost_before.keys()
        context.lost_before |= ids
        while len(context.lost_before) > _MOST_REMEMBERED:
            del context.lost_before[next(iter(context.lost_before))]
        back = settlement.part(lambda record: record.lane in lanes and record.id in fresh)
        back = back.instead(returned=back.done)
        back.claims = []
        try:
            if back:
                await context.store.settle(back)
        except StoreError as error:  # the next owner of the lane finds them as they are
            context.trouble("releasing events whose effects were lost", error)
        else:
            context.recovered("releasing events whose effects were lost")
        context.given_up |= {lane: settlement.leases[lane] for lane in lanes}
        context.counts.effects_lost += len(ids)
        context.tell(EffectsLost(settlement.stream, tuple(ids)))

    async def _retake(self, settlement: Settlement, began: float) -> None:
        context = self._context
        pauses = Pauses(_SHORTEST_PAUSE, _LONGEST_PAUSE)
        with context.keeper.retaking(frozenset(settlement.leases)):
            while True:
                asked_at = context.clock.monotonic()
                try:
                    tokens = await context.store.retake(
                        context.stream,
                        context.owner,
                        settlement.leases,
                        context.settings.lease_seconds,
                        (asked_at - began) * _DRIFT + _DOUBT_SECONDS,
                    )
                except StoreError as error:
                    context.trouble("re-taking lanes", error)
                    await asyncio.sleep(pauses.grow())
                else:
                    context.recovered("re-taking lanes")
                    context.keeper.taken(tokens, asked_at)
                    settlement.leases = tokens
                    return

    # -- isolating ----------------------------------------------------------------------------
    async def _each_lane(self, pending: PendingSettle) -> None:
        """Some row is locked: write lane by lane, and set aside those still locked."""
        for lane in sorted(pending.lanes):
            part, pending = pending.part(partial(_is_in, lane))
            try:
                held = await self._commit(part.settlement)
            except StoreLockedError:
                self._set_aside(part, part.lanes)
            except StoreRefusedError:
                await self._find_refused(part)
            else:
                self._written(part, held, 0.0)
        if pending.closing or pending.alarms:
            self._written(pending, _ALL_LANES, 0.0)

    async def _find_refused(self, pending: PendingSettle) -> None:
        """The store refuses some values: bisect the keys until one is left."""
        keys = list(dict.fromkeys(record.key_hash for record in pending.settlement.records()))
        if len(keys) <= 1:
            await self._apart(pending)
            return
        half = set(keys[: len(keys) // 2])
        for part in pending.part(lambda record: record.key_hash in half):
            await self._write(part, tell=False)

    async def _apart(self, pending: PendingSettle) -> None:
        """Write the outcomes of one key event by event; a refused one becomes a dead letter."""
        held: set[int] | frozenset[int] = _ALL_LANES
        for single in list(pending.settlement.apart()):
            (record,) = single.records()
            try:
                try:
                    held &= await self._commit(single)
                except StoreRefusedError as error:
                    held &= await self._bury(single, record, error)
                    pending = pending.without(record)
                pending.settlement.missing += single.missing
            except StoreLockedError:
                self._set_aside(pending, pending.lanes)
                return
            except StoreRefusedError as error:
                self._set_aside(pending, set())
                about = f"event {record.id} cannot be settled: the store refuses its row"
                error_text = short_error(error)
                self._context.tell(Alarm(self._context.stream, about, error_text, record.id))
                return
        self._written(pending, held, 0.0)

    async def _bury(self, single: Settlement, record: Record, error: StoreRefusedError) -> set[int]:
        """Make a dead letter of an event whose outcome is refused, with its previous attempts.

        A strict event is never buried automatically: consumers would wait for its number.
        """
        if record.kseq is not None:
            raise error
        reason = f"the store refused to write its outcome: {error}"
        name = self._context.settings.name or self._context.owner
        entry = attempt(name, "refused", record.attempts, reason)
        buried = DeadOutcome(record, record.attempts, reason, entry)
        held = await self._commit(single.instead(dead=[buried]))
        context = self._context
        about = f"event {record.id} is a dead letter"
        context.tell(Alarm(context.stream, about, reason, record.id))
        dead = len({record.lane} & held)
        context.count(0, 0, dead, 0)
        context.tell(Settled(context.stream, 0, 0, dead, 0, 0))
        if dead:
            context.tell(_buried(buried))
        return held

    # -- aside --------------------------------------------------------------------------------
    def _set_aside(self, pending: PendingSettle, lanes: set[int]) -> None:
        """Leave a settle to a background task; its keys stay busy until it is written, and these
        lanes are neither read nor settled.
        """
        keys = {record.key_hash for record in pending.settlement.records()}
        keys |= {key for key, _ in pending.closing}
        self._flight.set_aside(keys)
        self._keys.update(keys)
        self._lanes.update(lanes)
        task = asyncio.create_task(self._later(pending))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._keys.subtract(keys)
            self._lanes.subtract(lanes)
            self._keys, self._lanes = +self._keys, +self._lanes
            self._context.wake()

        task.add_done_callback(ended)

    async def _later(self, pending: PendingSettle) -> None:
        """Retry with growing pauses until it is written, the lane is lost, or the relay stops."""
        context = self._context
        pauses = Pauses(_SHORTEST_PAUSE, context.settings.lease_seconds)
        held = set[int]()
        while True:
            is_last = await wait_for(self._hasten, pauses.grow())
            try:
                held = await context.store.settle(pending.settlement)
                await self._give_up_lost(pending.settlement)
            except (StoreRefusedError, StoreRetryableError):
                if not is_last:
                    continue
            except StoreError as error:  # unknown: the lane is given up, which fences it
                context.trouble("settling postponed outcomes (outcome unknown)", error)
            break
        self._written(pending, held, 0.0)

    # -- reporting -----------------------------------------------------------------------------
    def _written(
        self,
        pending: PendingSettle,
        held: set[int] | frozenset[int],
        seconds: float,
        *,
        repeated: bool = False,
    ) -> None:
        """A settle was written for these lanes: free the keys that waited for it, and notify the
        observers.
        """
        context, settlement = self._context, pending.settlement
        fenced = self._flight.settled(pending, held, context.may_publish)
        tokens = context.keeper.tokens(pending.lanes - held)
        context.lose([n for n, token in tokens.items() if settlement.leases.get(n, token) == token])
        context.witnesses.settled(settlement, held, context.clock.monotonic())
        if settlement:
            vanished = _vanished(settlement, repeated=repeated)
            whole = pending.lanes <= held and not vanished
            self._tell(settlement, held, vanished, fenced, seconds, whole=whole)
        for record, error in pending.alarms:
            about = f"event {record.id} blocks its key"
            context.tell(Alarm(context.stream, about, error, record.id))
        if settlement.failed:
            context.look_soon.set()

    def _tell(
        self,
        settlement: Settlement,
        held: set[int] | frozenset[int],
        vanished: Collection[str],
        fenced: int,
        seconds: float,
        *,
        whole: bool,
    ) -> None:
        def written(records: Sequence[Record]) -> Sequence[Record]:
            if whole:
                return records
            return [r for r in records if r.lane in held and r.id not in vanished]

        if vanished:
            self._context.counts.vanished += len(vanished)
            self._context.tell(Vanished(settlement.stream, tuple(vanished)))

        done = written(settlement.done)
        failed = len(written([one.record for one in settlement.failed if not one.held]))
        held_back = len(written([one.record for one in settlement.failed if one.held]))
        graves = {r.seq for r in written([each.record for each in settlement.dead])}
        dead = len(graves)
        expired = len(written(settlement.truly_expired(held)))
        self._context.count(len(done), failed, dead, fenced)
        self._context.counts.expired += expired
        parked = len(settlement.parked)
        self._context.tell(
            Settled(settlement.stream, len(done), failed, dead, fenced, parked, expired, held_back)
        )
        for each in settlement.dead:
            if each.record.seq in graves:
                self._context.tell(_buried(each))
        if done:
            self._context.note_lag(done[0])
            self._context.corrections.delivered(done)
            self._context.tell(Delivered(settlement.stream, done, seconds))


def _is_in(lane: int, record: Record) -> bool:
    return record.lane == lane


def _buried(dead: DeadOutcome) -> Buried:
    record, attempts, error, entry = dead
    traceback = entry.traceback if entry is not None else ""
    return Buried(record.stream, record.id, record.type, record.topic, attempts, error, traceback)


def _vanished(settlement: Settlement, *, repeated: bool) -> dict[str, None]:
    """Return the ids of events that the database has lost, in order.

    When a settle is repeated because its reply was lost, a missing done event may have been deleted
    by the first attempt; not so if another event has its number by now.
    """
    deleted = not settlement.keep_done and repeated
    done = {record.id for record in settlement.done} if deleted else set[str]()
    return dict.fromkeys(
        record.id for record, replaced in settlement.missing if replaced or record.id not in done
    )
