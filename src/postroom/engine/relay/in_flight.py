"""Events in flight: the bookkeeping between a read and its settle, without input or output.

A key is *busy* from the moment one of its events is admitted until the settle of its outcome has
been committed. Reads leave out busy keys, by the list as it was when the read started (R3, B5). Of
each key only the unbroken run of confirmed events is settled; events confirmed behind a failed one
are sent again (B5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from postroom.broker import CONFIRMED, Outcome, Verdict
from postroom.engine.failure_policy import Action, FailurePolicy
from postroom.engine.relay.held_back import LIMITED, held_back
from postroom.engine.relay.key_run import KeyRun, is_over
from postroom.engine.relay.limits import Limits
from postroom.engine.relay.paused import Paused
from postroom.engine.relay.pending_settle import PendingSettle
from postroom.model import receipts as receipt_texts
from postroom.model.history import attempt
from postroom.record import UNREADABLE, Record, State
from postroom.settlement import DeadOutcome, FailedOutcome, Settlement
from postroom.transaction import Claim

_PROCESSING = str(State.PROCESSING)
_MOST_ALONE = 10_000


class InFlight:
    """The events in flight of one group of lanes."""

    def __init__(
        self,
        policy: FailurePolicy,
        *,
        on_stir: Callable[[], None],
        on_suspect: Callable[[Record], None],
        on_outage: Callable[[str], None],
        on_answer: Callable[[], None],
        on_attempt: Callable[[Record, Outcome, int], None],
        paused: Paused | None = None,
        limits: Limits | None = None,
        relay: str = "",
    ) -> None:
        self._relay = relay  # its name, for histories
        self._policy = policy
        self._paused, self._limits = paused, limits
        self._alone: dict[str, None] = {}  # ids of suspects that wait for the limit of their topic
        self._on_stir = on_stir
        self._on_suspect = on_suspect
        self._on_outage = on_outage
        self._on_answer = on_answer
        self._on_attempt = on_attempt
        self._runs: dict[bytes, KeyRun] = {}
        self._begun: set[str] = set()  # ids: a number may be assigned again after a failover
        self._open = 0  # records without an outcome
        self._closing: list[tuple[bytes, KeyRun]] = []
        self._starts: list[tuple[Record, asyncio.Future[bool]]] = []
        self._done: list[Record] = []
        self._claims: list[Claim] = []  # effects of done events
        self._places: dict[str, str] = {}  # id → where the destination put a done event
        self._failed: list[FailedOutcome] = []
        self._dead: list[DeadOutcome] = []
        self._returned: list[Record] = []
        self._expired: list[Record] = []
        self._kept: set[str] = set()  # ids: expired by this host's clock, but not by the store's
        self._parked: list[Record] = []
        self._alarms: list[tuple[Record, str]] = []
        self.repeats = 0  # confirmed, but not settled: they will be sent again

    # -- questions ----------------------------------------------------------------------------
    @property
    def is_empty(self) -> bool:
        if self._parked or self._starts:
            return False
        return all(run.aside and run.closed for run in self._runs.values())

    @property
    def waiting_for_outcomes(self) -> int:
        return self._open

    @property
    def wants_start(self) -> bool:
        return bool(self._starts)

    @property
    def wants_settle(self) -> bool:
        return bool(self._closing or self._done or self._starts or self._returned or self._parked)

    def busy_keys(self) -> list[bytes]:
        return list(self._runs)

    def busy_lanes(self) -> set[int]:
        return {run.lane for run in self._runs.values() if not (run.aside and run.closed)}

    def set_aside(self, keys: Iterable[bytes]) -> None:
        """The outcomes of these keys cannot be written for now, and are not waited for."""
        for key in keys:
            if (run := self._runs.get(key)) is not None:
                run.aside = True

    def is_idle(self, lane: int) -> bool:
        """Return whether nothing of the lane is in flight or waits to be written."""
        waiting = (*self._parked, *self._returned, *self._done, *(r for r, _ in self._starts))
        return lane not in self.busy_lanes() and all(record.lane != lane for record in waiting)

    def note_progress(self, now: float) -> None:
        """Record which runs have made progress since the last call: those are not stuck."""
        for run in self._runs.values():
            seen = 2 * run.next + self._is_begun(run)
            if seen != run.seen:
                run.seen, run.since = seen, now

    def stuck(self, before: float) -> list[KeyRun]:
        """Return the runs in flight that have made no progress since that moment."""
        turns = self._policy.counts_at_start  # a run that has not started only waits for its turn
        old = (r for r in self._runs.values() if r.since < before and not r.closed)
        return [run for run in old if run.alone or not turns or self._is_begun(run)]

    def stuck_records(self, before: float) -> int:
        """Return how many records wait for an outcome in runs that are stuck since that moment."""
        return sum(run.unanswered for run in self.stuck(before))

    def hung_lanes(self, before: float) -> set[int]:
        return {run.lane for run in self.stuck(before) if run.sent}  # others wait for their turn

    def is_begun(self, record: Record) -> bool:
        """Return whether its start was counted, and its lane has not been lost since."""
        run = self._runs.get(record.key_hash)
        return run is not None and not run.lost and record.id in self._begun

    def topics(self) -> Iterator[str]:
        """Yield the topic of each event that was passed to the destination and has no outcome."""
        for run in self._runs.values():
            if run.sent and not run.closed:
                yield from (record.topic for record in run.records[run.next :])

    def is_over(self, record: Record) -> bool:
        """Return whether its time to be sent is over, as far as this relay knows."""
        return record.expires_us is not None and is_over(record) and record.id not in self._kept

    def _is_begun(self, run: KeyRun) -> bool:
        return run.next < len(run.records) and run.records[run.next].id in self._begun

    # -- in -----------------------------------------------------------------------------------
    def admit(self, records: Sequence[Record], lanes: Collection[int], now: float) -> list[Record]:
        """Open the runs of the events read in these lanes; returns the events to publish, in order.

        Followers of a blocked key are set aside to be parked. Events that a dead relay left
        `processing` become suspects, and their keys wait for them. Such a follower is first made
        pending again, since a processing event cannot be parked, and would be read over and over.
        Events that cannot be sent as stored are rejected at their turn; those of a paused topic, or
        of one at its limit, wait, and their keys behind them.
        """
        batch: list[Record] = []
        held = self._paused.topics if self._paused is not None else {}
        limits = self._limits if self._limits is not None and self._limits.active else None
        if limits is not None:
            limits.count()
        runs, fresh, later = self._runs, set[bytes](), set[bytes]()
        for record in records:
            key = record.key_hash
            if record.lane not in lanes or key in later:
                continue
            if record.state == UNREADABLE:
                fresh.discard(key)
                if key not in runs:
                    self._reject(record, record.flaw or UNREADABLE, now)
                continue
            if record.barrier is not None and record.seq > record.barrier:
                if key not in runs or key in fresh:
                    aside = self._returned if record.state == _PROCESSING else self._parked
                    aside.append(record)
                continue
            run = runs.get(key)
            by = record.expires_us
            over = by is not None and self.is_over(record)
            if run is not None:
                if key in fresh and not run.alone:
                    # Tried alone, rejected, expired or held, at its turn.
                    is_held = over or (bool(held) and record.topic in held)
                    is_odd = record.state == _PROCESSING or record.flaw is not None or is_held
                    if is_odd or (limits is not None and not limits.follow(record)):
                        fresh.discard(key)
                        continue
                    run.records.append(record)
                    batch.append(record)
                continue
            fresh.add(key)
            if record.flaw is not None:
                self._reject(record, record.flaw, now)
                continue
            if record.state == _PROCESSING:
                self._admit_orphan(record, now)
                continue
            if over:
                self._expire(record, now)
                continue
            if held and record.topic in held:
                self._hold(record, KeyRun.of_suspect(record, now))
                continue
            if limits is not None:
                if record.id in self._alone:
                    self._open += 1
                    self._suspect_again(record, now)
                    continue
                if (seconds := limits.admit(record)) is not None:
                    if seconds:
                        self._hold(record, KeyRun.of_suspect(record, now), seconds)
                    else:
                        later.add(key)  # its key waits, and is read again at its turn
                    continue
            runs[key] = KeyRun(record, now)
            batch.append(record)
        self._open += len(batch)
        return batch

    def _reject(self, record: Record, flaw: str, now: float) -> None:
        """Reject an event that cannot be sent, without calling the destination."""
        self._runs[record.key_hash] = KeyRun.of_suspect(record, now)
        self._open += 1
        self._note(record, Outcome(Verdict.REJECTED, flaw))

    def _expire(self, record: Record, now: float) -> None:
        run = self._runs[record.key_hash] = KeyRun.of_suspect(record, now)
        self._expired.append(record)
        self._close(record.key_hash, run)

    def _admit_orphan(self, record: Record, now: float) -> None:
        run = self._runs[record.key_hash] = KeyRun.of_suspect(record, now)
        decision = self._policy.orphan(record)
        if decision.action is Action.BURY:
            _, attempts, _, error, _ = decision
            entry = attempt(self._relay, Verdict.UNKNOWN.value, attempts, error)
            self._dead.append(DeadOutcome(record, attempts, error, entry))
            self._close(record.key_hash, run)
        elif self._paused is not None and record.topic in self._paused.topics:
            self._hold(record, run)
        else:
            self._open += 1
            self._on_suspect(record)

    def _hold(self, record: Record, run: KeyRun, seconds: float | None = None) -> None:
        """Let an event of a paused topic, or of one at its limit, wait in the store."""
        assert self._paused is not None
        self._runs[record.key_hash] = run
        held = self._paused.hold(record) if seconds is None else held_back(record, seconds, LIMITED)
        self._failed.append(held)
        self._close(record.key_hash, run)

    def _suspect_again(self, record: Record, now: float) -> None:
        del self._alone[record.id]
        self._runs[record.key_hash] = KeyRun.of_suspect(record, now)
        self._on_suspect(record)

    def send_alone(self, record: Record, now: float) -> KeyRun | None:
        """Return the run of a suspect that is about to be tried, or None if it has ended."""
        run = self._runs.get(record.key_hash)
        if run is None or run.sent or run.closed or run.records[0].seq != record.seq:
            return None
        run.sent, run.since = True, now
        return run

    def withdraw(self, record: Record, *, limited: bool = False) -> None:
        """A suspect cannot be tried now: its lane is being handed over, it is paused or expired.

        limited     its topic is at its limit: it is read again at its turn, and tried alone
        """
        run = self._runs.get(record.key_hash)
        if run is not None and not run.sent and not run.closed and run.records[0].seq == record.seq:
            self._open -= 1
            if self.is_over(run.records[0]):
                self._expired.append(run.records[0])
                self._close(record.key_hash, run)
            elif self._paused is not None and record.topic in self._paused.topics:
                self._hold(run.records[0], run)
            else:
                self._drop(record.key_hash, run)
                if limited and record.state != _PROCESSING:
                    self._alone[record.id] = None
                    while len(self._alone) > _MOST_ALONE:
                        del self._alone[next(iter(self._alone))]
            self._on_stir()

    def runs_of(self, batch: Iterable[Record]) -> list[tuple[bytes, KeyRun]]:
        """Return the runs of a batch."""
        keys = dict.fromkeys(record.key_hash for record in batch)
        return [(key, self._runs[key]) for key in keys]

    @staticmethod
    def nothing_in_doubt(runs: Iterable[tuple[bytes, KeyRun]]) -> bool:
        """Say whether no outcome of these runs is awaited any more."""
        return all(run.closed or run.lost for _, run in runs)

    def start(self, record: Record) -> asyncio.Future[bool]:
        """Ask for an attempt to be counted with the next settle (H1)."""
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        run = self._runs.get(record.key_hash)
        if run is None or run.lost:
            granted.set_result(False)
        else:
            self._starts.append((record, granted))
            self._on_stir()
        return granted

    # -- outcomes -----------------------------------------------------------------------------
    def confirm(self, records: Sequence[Record], receipts: Sequence[str] = ()) -> None:
        runs, done, places = self._runs, self._done, self._places
        if len(receipts) != len(records):
            receipts = ()
        for place, record in enumerate(records):
            run = runs.get(record.key_hash)
            if (
                run is None or run.closed or run.lost or run.failed or run.early
                or run.records[run.next].seq != record.seq
            ):  # fmt: skip
                told = CONFIRMED._replace(receipt=receipts[place]) if receipts else CONFIRMED
                self._note(record, told)
                continue
            # The common case, without further calls: the next event of its run is confirmed.
            done.append(record)
            if receipts:
                places[record.id] = receipts[place]
            run.next += 1
            self._open -= 1
            if run.next == len(run.records):
                self._close(record.key_hash, run)
        self._on_answer()
        self._on_stir()

    def report(self, record: Record, outcome: Outcome) -> None:
        self._note(record, outcome)
        if outcome.is_answer:
            self._on_answer()
        self._on_stir()

    def ended(self, runs: Iterable[tuple[bytes, KeyRun]], error: str) -> None:
        """The publish call has ended: unreported events are unknown."""
        unknown = Outcome(Verdict.UNKNOWN, error)
        for key, run in runs:
            if not run.closed and self._runs.get(key) is run:
                for record in run.records[run.next :]:
                    self._note(record, unknown)
        self._on_stir()

    def _note(self, record: Record, outcome: Outcome) -> None:
        run = self._runs.get(record.key_hash)
        if run is None or run.closed:
            return
        expected = run.records[run.next]
        if expected.seq != record.seq:
            if any(record.seq == later.seq for later in run.records[run.next + 1 :]):
                run.early = run.early or {}
                run.early.setdefault(record.seq, outcome)
            return
        self._step(run, expected, outcome)
        while run.early and run.next < len(run.records):
            expected = run.records[run.next]
            if expected.seq not in run.early:
                break
            self._step(run, expected, run.early.pop(expected.seq))
        if run.next == len(run.records):
            self._end(record.key_hash, run)

    def _step(self, run: KeyRun, record: Record, outcome: Outcome) -> None:
        run.next += 1
        self._open -= 1
        if outcome.verdict is Verdict.CONFIRMED:
            if run.failed is None and not run.lost:
                self._done.append(record)
                if outcome.receipt:
                    self._places[record.id] = outcome.receipt
                self._claims += [Claim(record.lane, record.id, each) for each in outcome.proofs]
            else:
                self.repeats += 1
        elif run.failed is None:
            run.failed = (record, outcome)
        elif record.id in self._begun and not run.lost:
            self._returned.append(record)

    def _end(self, key: bytes, run: KeyRun) -> None:
        """All outcomes of a run are known."""
        if run.lost:
            self._drop(key, run)
            return
        if run.failed is not None:
            record, outcome = run.failed
            if outcome.verdict is Verdict.OUTAGE:
                self._on_outage(outcome.error)
            decision = self._policy.decide(record, outcome, alone=run.alone)
            _, attempts, delay, error, _ = decision
            if outcome.verdict is not Verdict.UNSENT:
                self._on_attempt(record, outcome, attempts)
            verdict = outcome.verdict.value
            entry = attempt(self._relay, verdict, attempts, error, outcome.traceback)
            match decision.action:
                case Action.RETRY:
                    self._failed.append(FailedOutcome(record, attempts, delay, error, entry))
                case Action.BURY:
                    self._dead.append(DeadOutcome(record, attempts, error, entry))
                case Action.RELEASE:
                    if record.id in self._begun:
                        self._returned.append(record)
                case Action.ISOLATE:
                    self._suspect(key, run, record)
                    return
            if decision.alarm:
                self._alarms.append((record, error))
        self._close(key, run)

    def _suspect(self, key: bytes, run: KeyRun, record: Record) -> None:
        if record.id in self._begun:  # its attempt is already counted
            self._begun.discard(record.id)
            record = record._replace(attempts=record.attempts + 1)
        for earlier in run.records:
            self._begun.discard(earlier.id)
        self._runs[key] = KeyRun.of_suspect(record, run.since)
        self._open += 1
        self._on_suspect(record)

    def _close(self, key: bytes, run: KeyRun) -> None:
        run.closed = True
        self._closing.append((key, run))

    def _drop(self, key: bytes, run: KeyRun) -> None:
        if self._begun:
            self._begun.difference_update(record.id for record in run.records)
        self._kept.difference_update([record.id for record in run.records] if self._kept else ())
        if self._runs.get(key) is run:
            del self._runs[key]

    # -- out ----------------------------------------------------------------------------------
    def collect(
        self,
        stream: str,
        owner: str,
        lease_seconds: float,
        tokens: Callable[[Collection[int]], dict[int, int]],
        *,
        keep_done: bool,
    ) -> PendingSettle:
        """Take everything that waits to be written."""
        settlement = Settlement(
            stream, owner, lease_seconds, {}, keep_done,
            [record for record, _ in self._starts], self._done, self._failed, self._dead,
            self._returned, self._parked, expired=self._expired,
        )  # fmt: skip
        lanes = {record.lane for record in settlement.records()}
        settlement.leases, settlement.claims = tokens(lanes), self._claims
        if keep_done:
            ids = [record.id for record in self._done]
            settlement.receipts = receipt_texts.stamp(self._relay, self._places, ids)
        pending = PendingSettle(settlement, lanes, self._closing, self._starts, self._alarms)
        self._closing, self._starts, self._alarms = [], [], []
        self._claims, self._expired, self._places = [], [], {}
        self._done, self._failed, self._dead, self._returned, self._parked = [], [], [], [], []
        return pending

    def settled(
        self, pending: PendingSettle, lanes: Collection[int], may_start: Callable[[int], bool]
    ) -> int:
        """The settle was committed for these lanes; returns how many outcomes were discarded."""
        fenced = 0
        if not pending.lanes <= set(lanes):
            settlement = pending.settlement
            fenced = sum(record.lane not in lanes for record in settlement.done)
            self.repeats += fenced
            fenced += sum(failure.record.lane not in lanes for failure in settlement.failed)
            others = [*(buried.record for buried in settlement.dead), *settlement.expired]
            fenced += sum(record.lane not in lanes for record in others)
        for key, run in pending.closing:
            self._drop(key, run)
            self._policy.forget(run.records)
        self._kept.update(record.id for record in pending.settlement.kept)
        missing = {missing.record.id for missing in pending.settlement.missing}
        for record, granted in pending.starts:
            mine = self._runs.get(record.key_hash)
            if record.id in missing and mine is not None:
                mine.lost = True  # the store does not hold it any more: there is nothing to settle
            counted = record.lane in lanes and record.id not in missing
            go = counted and mine is not None and not mine.lost and may_start(record.lane)
            if go:
                self._begun.add(record.id)
            elif counted:
                self._returned.append(record)
            if not granted.done():
                granted.set_result(go)
        return fenced

    def forget(self, lanes: Collection[int]) -> None:
        """These lanes are lost: outcomes of their events no longer count.

        A key stays busy until its publish call has ended, so that none of its events is sent twice
        at the same time.
        """
        if not lanes:
            return
        for key, run in list(self._runs.items()):
            if run.lane in lanes:
                if run.closed or not run.sent:
                    self._open -= run.unanswered
                    self._drop(key, run)
                run.lost = True
        for record, granted in self._starts:
            if record.lane in lanes and not granted.done():
                granted.set_result(False)
        self._starts = [(r, granted) for r, granted in self._starts if r.lane not in lanes]
        self.repeats += sum(record.lane in lanes for record in self._done)
        self._done = [r for r in self._done if r.lane not in lanes]
        ours = {record.id for record in self._done}
        self._places = {name: place for name, place in self._places.items() if name in ours}
        self._claims = [claim for claim in self._claims if claim.lane not in lanes]
        self._failed = [f for f in self._failed if f.record.lane not in lanes]
        self._dead = [d for d in self._dead if d.record.lane not in lanes]
        self._returned = [r for r in self._returned if r.lane not in lanes]
        self._parked = [r for r in self._parked if r.lane not in lanes]
        self._expired = [r for r in self._expired if r.lane not in lanes]
        self._closing = [(k, run) for k, run in self._closing if run.lane not in lanes]
        self._on_stir()
