"""The simulated world: producers, relays in processes that crash and pause, a store, a broker."""

import asyncio
import copy
from collections import Counter
from itertools import chain
from typing import NamedTuple

from postroom.engine.relay.relay import Relay
from postroom.event import Event
from postroom.model.clock import from_microseconds
from postroom.observer import Alarm, LanesChanged, Settled
from postroom.outbox import Outbox
from postroom.retry import Constant, RetryPolicy
from postroom.stores.memory import MemoryStore
from postroom.stores.memory.transaction import MemoryTransaction
from tests.sim.loop import SimClock
from tests.sim.operators import EPOCH_US, Operators
from tests.sim.process import GONE, LEASE, Process, SimBroker, SimStore, cut, sim_handlers

MOST_RELAYS = 4
PARTS = {  # their tasks' names
    "Heartbeat", "Worker", "Suspects", "Stager", "Watcher", "Pruner", "HeldEvents", "ControlWatch",
}  # fmt: skip


class Arrival(NamedTuple):
    at: float
    id: str
    stream: str
    topic: str
    key: str | None
    seq: int
    kseq: int | None
    attempts: int


class World:
    """Producers, relays, a store, a broker, and what was seen.

    strict      keyed events are numbered, and their writers are not coordinated
    streams     each has relays of its own
    sharing     of handlers: how many at a time, and how many in one transaction
    """

    def __init__(
        self, rng, chaos, loop, *, keys, events, relays, settings, handlers=False, strict=False,
        streams=1, sharing=None, operators=None,
    ):  # fmt: skip
        self.rng, self.chaos, self.loop = rng, chaos, loop
        self.clock_offset_us = 0
        self.store = MemoryStore(now_us=self.store_time)
        self.outbox, self.strict_outbox = Outbox(), Outbox(ordering="strict")
        self.keys = [f"k{n}" for n in range(keys)]
        self.events = events
        self.relays_wanted = relays
        self.settings = settings
        self.handlers = handlers
        self.strict = strict
        self.sharing = sharing or {}
        self.streams = [f"s{n}" for n in range(streams)]
        self.committed: set[str] = set()
        self.delayed: dict[str, int] = {}  # id → when it is due, on the store's clock
        self.poison: set[str] = set()
        self.killers: set[str] = set()  # their handler kills the process
        self.refused: set[str] = set()  # that they failed is not written: the store refuses
        self._locks: dict[tuple[str, int], float] = {}
        self.breakers: set[str] = set()  # sending them closes the channel for all in flight
        self.shares: dict[str, list[int]] = {}
        self.buried: set[str] = set()
        self.replayed: set[str] = set()
        self.unsure: set[str] = set()
        self.hasty: set[str] = set()  # arrived behind one that failed, out of their turn
        self.arrivals: list[Arrival] = []
        self.arrived = Counter()
        self.broker_down = False
        self.relays: dict[str, tuple[Relay, Process]] = {}
        self.leaving: dict[str, tuple[Relay, Process]] = {}
        self.lanes_lost = 0
        self.failures = 0
        self.unfenced: list[tuple[str, int]] = []
        self.early: list[str] = []
        self.alarms: list[str] = []
        self.circles = 0  # how often in a row a relay has settled the same
        self.leaks: list[str] = []
        self._last_use: dict[str, tuple[list[list[int]], int]] = {}
        self.life = 0  # of the store: it has been set back so often
        self.vanished: set[str] = set()  # committed, and lost when the store was set back
        self.undone: set[str] = set()  # took effect, and the effect was lost when it was set back
        self.died: set[str] = set()  # were dead letters before, and may not be any more
        self.started_in: dict[str, int] = {}  # event → the life of the store that counted its start
        self._replica = None
        self._writing: list[MemoryTransaction] = []
        self._started = 0
        self._ids = 0
        self._background: set[asyncio.Task] = set()
        self.operators = Operators(self, operators or rng)

    def store_time(self):
        return EPOCH_US + int(self.loop.time() * 1_000_000) + self.clock_offset_us

    # -- what is seen -------------------------------------------------------------------------
    def observe(self, fact):
        if isinstance(fact, LanesChanged) and fact.change == "lost":
            self.lanes_lost += 1
        if isinstance(fact, Settled):
            self.failures += fact.failed
        if isinstance(fact, Alarm) and "crashed" in fact.about:
            self.alarms.append(f"{fact.about}: {fact.error}")

    def check_fence(self, settlement, lanes):
        """Only who holds a lane, by this token and by the store's clock, may change it (G5)."""
        leases, now = self.store.data.leases[settlement.stream], self.store.now_us()
        for lane in lanes:
            lease = leases[lane]
            held = (lease.owner, lease.token) == (settlement.owner, settlement.leases[lane])
            if not held or lease.until_us <= now:
                self.unfenced.append((settlement.owner, lane))

    def noting_starts(self, call):
        """Note in which life of the store a handler's start was counted, and what has expired."""

        async def settle(settlement):
            held = await call(settlement)
            starts = (record.id for record in settlement.starts if record.lane in held)
            self.started_in |= dict.fromkeys(starts, self.life)
            self.operators.note_settle(settlement, held)
            return held

        return settle

    def check_use(self, process, settlement, lanes):
        """The same settle again, although it was committed, is a relay that turns in circles."""
        s = settlement
        content = [[record.seq for record in records] for records in (s.returned, s.parked)]
        moves = s.starts or s.done or s.failed or s.dead or s.expired or lanes != set(s.leases)
        last, streak = self._last_use.get(process.name, ([], 0))
        streak = streak + 1 if content == last and not moves else 0
        self._last_use[process.name] = (content, streak)
        self.circles = max(self.circles, streak)

    def arrive(self, record):
        """Note what the destination has, and had its place to come to (`hasty` has what had not)."""
        now = self.store_time()
        if now < self.delayed.get(record.id, 0):
            self.early.append(record.id)
        facts = (getattr(record, name) for name in Arrival._fields[1:])
        self.arrivals.append(Arrival(self.loop.time(), *facts))
        self.arrived[record.id] += 1

    def unfinished(self):
        return [s for s in self.store.data.rows.values() if s.stage != "over"]

    # -- producers ----------------------------------------------------------------------------
    def later(self, delay, call):
        async def wait():
            await asyncio.sleep(delay)
            await call()

        task = asyncio.ensure_future(wait())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def make_events(self, stream, key, count):
        made = []
        for n in range(count):
            self._ids += 1
            topic, due = stream, None
            if not self.handlers and self.chaos.hit("misconfigured"):
                topic = f"{GONE}{stream}"
            if not (self.strict and key) and self.chaos.hit("delay"):
                due = self.store_time() + int(self.rng.uniform(0, 1.5) * LEASE * 1_000_000)
                self.delayed[f"e{self._ids}"] = due
            available_at = None if due is None else from_microseconds(due)
            name = f"e{self._ids}"
            by = None if self.strict and key else self.operators.deliver_by(due)
            event = Event("sim", n, key=key, id=name, stream=stream, topic=topic,
                          available_at=available_at, deliver_by=by)  # fmt: skip
            made.append(event)
        return made

    async def produce(self, locks, number):
        rng = self.rng
        # With pauses and limits, for some seconds, so that there is work during each.
        pace = 12 / number if {"controls", "limits"} & set(self.chaos.rates) else 0.02
        made = 0
        while made < number:
            await asyncio.sleep(rng.expovariate(1 / pace))
            key = rng.choice([*self.keys, None]) if rng.random() < 0.9 else self.keys[0]
            count = rng.randint(1, 3)
            events = self.make_events(rng.choice(self.streams), key, count)
            strict = self.strict and key is not None
            outbox = self.strict_outbox if strict else self.outbox
            # Coordinated writers both lock the same row before `add` (W8); strict needs none.
            async with asyncio.Lock() if strict or key is None else locks[key]:
                tx = self.store.begin()
                self._writing = [tx, *(other for other in self._writing if not other._over)]
                life = self.life
                try:
                    await outbox.add_many(tx, events)
                except ConnectionError:
                    continue  # the server went away
                await asyncio.sleep(rng.expovariate(1 / 0.02))  # late commits
                if life != self.life:
                    continue
                if self.chaos.hit("rollback"):
                    await tx.rollback()
                else:
                    for event in events:
                        self.committed.add(event.id)
                        if self.chaos.hit("refused"):
                            self.refused.add(event.id)
                        if self.chaos.hit("poison"):
                            self.poison.add(event.id)
                        elif self.handlers and self.chaos.hit("killer"):
                            self.killers.add(event.id)
                        elif not self.handlers and self.chaos.hit("breaker"):
                            self.breakers.add(event.id)
                    await tx.commit()
            made += count

    # -- relays -------------------------------------------------------------------------------
    def serving(self, stream):
        relays = (relay for relay, _ in self.relays.values() if relay.is_running)
        return [relay for relay in relays if relay.settings.stream == stream]

    def start_relay(self, stream):
        self._started += 1
        process = Process(self, f"relay{self._started}")
        relay = Relay(
            SimStore(self, process),
            sim_handlers(self, process) if self.handlers else SimBroker(self, process),
            clock=SimClock(self.loop),
            observers=[self, self.operators.watch(process)],
            log=False,
            owner=f"{process.name}",
            stream=stream,
            retry=RetryPolicy(max_attempts=5, backoff=Constant(0.2)),
            lease_seconds=LEASE,
            poll_seconds=0.2,
            publish_seconds=0.8,
            stop_seconds=5.0,
            prune_seconds=5.0,
            outage_seconds=0.1,
            misconfigured_seconds=0.3,
            **self.settings,
        )
        if self.operators.consumers:
            relay.consumer = stream
        self.relays[process.name] = (relay, process)
        return relay.start()

    def crash(self, name):
        if name not in self.relays and name not in self.leaving:
            return
        relay, process = self.relays.pop(name, None) or self.leaving.pop(name)
        process.crashed = True
        for tx in process.open:
            tx.abort()
        relay._unsubscribe()
        for service in relay._services:
            service._task.cancel()
        for worker in relay._workers:
            for task in (*worker._publishing, *worker.settler._tasks):
                task.cancel()

    async def _leave(self, name):
        if name in self.leaving:
            await self.leaving[name][0].stop()
            self.leaving.pop(name, None)

    # -- faults -------------------------------------------------------------------------------
    async def nemesis(self):
        chaos, rng = self.chaos, self.rng
        while not chaos.calm:
            await asyncio.sleep(0.01)
            for name in list(self.relays):
                if chaos.hit("crash"):
                    self.crash(name)
                elif chaos.hit("pause"):
                    self.relays[name][1].paused_until = (
                        self.loop.time() + rng.uniform(0.1, 3) * LEASE
                    )
                elif chaos.hit("leave"):
                    self.leaving[name] = self.relays.pop(name)
                    self.later(0, lambda name=name: self._leave(name))
            for stream in self.streams:
                here = len(self.serving(stream))
                wanted = chaos.hit("join") or here < self.relays_wanted
                if wanted and here < MOST_RELAYS:
                    await self.start_relay(stream)
            if chaos.hit("outage"):
                self.broker_down = True
                self.later(rng.uniform(0.05, 1.5), self._heal_broker)
            if chaos.hit("clock"):
                self.clock_offset_us += int(rng.uniform(-3, 3) * LEASE * 1_000_000)
            if chaos.hit("locked_lane"):
                lock = (rng.choice(self.streams), self._some_lane())
                self._locks[lock] = self.loop.time() + rng.uniform(0.1, 4) * LEASE
            if chaos.hit("operator"):
                await self._operate()
            if {"controls", "limits"} & set(chaos.rates):
                await self.operators.act()
            if "set_back" in chaos.rates:
                self._lag()

    def _lag(self):
        """Keep a replica that lags, and now and then make it the primary.

        The effects of handlers are in the store, and those that the replica lacks are lost.
        """
        if self._replica is not None and (self._in_doubt() or self.chaos.hit("set_back")):
            data, last, committed, effects = self._replica
            relays = chain(self.relays.values(), self.leaving.values())
            for tx in chain(self._writing, *(process.open for _, process in relays)):
                cut(tx)
            self.died |= {s.row.id for s in self.store.data.rows.values() if s.state == "dead"}
            if self.handlers:
                self.undone |= {came.id for came in self.arrivals[effects:]}
                self.arrivals = self.arrivals[:effects]
                self.arrived = Counter(came.id for came in self.arrivals)
            self.store.data, self.store._seq = copy.deepcopy(data), last
            self.life += 1
            lost = self.committed - committed
            self.vanished |= lost
            self.committed -= lost
            for guilty in (self.poison, self.killers, self.breakers, self.refused):
                guilty -= lost
        elif self._replica is None or self.rng.random() < 0.05:
            now = copy.deepcopy(self.store.data)
            self._replica = (now, self.store._seq, set(self.committed), len(self.arrivals))

    def _in_doubt(self):
        """Say whether to do it while an event is under way that will be lost: it is rare else."""
        _, _, committed, effects = self._replica
        undone = {came.id for came in self.arrivals[effects:]} if self.handlers else set()
        sent = any(
            stored.row.id in undone
            or (stored.row.id in self.arrived and stored.row.id not in committed)
            for stored in self.unfinished()
        )
        chosen = sent and not self.chaos.calm and self.rng.random() < 0.2
        self.chaos.fired["set_back"] += chosen
        return chosen

    def _some_lane(self):
        """A lane, rather one with events."""
        busy = sorted({stored.row.lane for stored in self.unfinished()})
        return self.rng.choice(busy or range(64))

    def locked(self, stream, lanes):
        """Say whether a stranger's transaction holds one of these lanes."""
        now = self.loop.time()
        return any(self._locks.get((stream, lane), 0.0) > now for lane in lanes)

    async def _heal_broker(self):
        self.broker_down = False

    # -- people: each verb takes the lane away from under its relay ---------------------------
    async def _operate(self):
        """Bury or skip an event that failed, or replay a dead one."""
        rows = list(self.store.data.rows.values())
        failed = [s for s in rows if s.state == "failed"]
        dead = [s for s in rows if s.state == "dead"]
        if failed and self.rng.random() < 0.5:
            chosen = self.rng.choice(failed)
            if chosen.row.kseq is not None or self.rng.random() < 0.5:
                await self.skip(chosen)
            else:
                self.buried.add(chosen.row.id)
                await self.store.bury([chosen.row.id], "by hand")
        elif dead:
            chosen = self.rng.choice(dead).row.id
            self.replayed.add(chosen)
            await self.store.replay([chosen])

    async def skip(self, stored):
        """Its marker takes its place, its number if it has one, and is to arrive."""
        skipped = stored.row.id
        self.buried.add(skipped)
        await self.store.skip(skipped, "by hand")
        self.committed.add(stored.row.id)  # the row is the marker's now
        if skipped in self.delayed:
            self.delayed[stored.row.id] = 0

    async def skip_exhausted(self):
        """Strict events are never given up: after all their attempts they wait for a person."""
        for stored in self.unfinished():
            if stored.row.kseq is not None and stored.attempts >= 5:
                await self.skip(stored)

    # -- a run --------------------------------------------------------------------------------
    async def run(self):
        rng = self.rng
        locks = {key: asyncio.Lock() for key in self.keys}
        for stream in self.streams:
            for _ in range(self.relays_wanted):
                await self.start_relay(stream)
        nemesis = asyncio.ensure_future(self.nemesis())
        each = max(1, self.events // 3)
        await asyncio.gather(*(self.produce(locks, each) for _ in range(3)))
        await asyncio.sleep(rng.uniform(0, 3))
        self.chaos.calm = True
        await nemesis
        self.broker_down = False
        await self.operators.resume_all()
        await self.come_to_rest()
        for stream in self.streams:
            if len(self.serving(stream)) > 1:
                await asyncio.sleep(10 * LEASE)
                self.shares[stream] = [len(r._context.keeper.held) for r in self.serving(stream)]
        for relay, _ in [*self.relays.values(), *self.leaving.values()]:
            await relay.stop()
        await asyncio.sleep(0)
        self.leaks = [t.get_name() for t in asyncio.all_tasks() if t.get_name() in PARTS]

    async def come_to_rest(self):
        patience = (60 + 15 * len(self.killers)) * LEASE
        healed = self.loop.time()
        while self.unfinished() and self.loop.time() < healed + patience:
            for stream in self.streams:
                if not self.serving(stream):
                    await self.start_relay(stream)
            await asyncio.sleep(0.1)
            await self.skip_exhausted()
