"""The simulated world: processes that crash and pause, a store behind a network, a broker."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

from postroom.broker import UNSENT, BrokerCapabilities, Outcome, Verdict
from postroom.brokers.handlers import Handlers
from postroom.engine.relay import Relay
from postroom.errors import StoreConflictError, StoreLostError
from postroom.event import Event
from postroom.observer import Lanes, Settled
from postroom.outbox import Outbox
from postroom.retry import Constant, RetryPolicy
from postroom.stores.memory import MemoryStore
from tests.sim.loop import SimClock

LEASE = 1.0
EPOCH_US = 1_800_000_000_000_000

WRITES = {"settle", "beat", "take", "retake", "release", "mend", "stage", "leave"}


class Chaos:
    """Rates of faults, drawn once per seed: a quiet world finds other bugs than a wild one."""

    KINDS = {
        "crash": 0.004,
        "pause": 0.004,
        "store_conflict": 0.05,
        "store_lost": 0.05,
        "store_limbo": 0.03,
        "slow_store": 0.03,
        "fail": 0.1,
        "unknown_arrived": 0.05,
        "unknown_missing": 0.05,
        "silent": 0.02,
        "slow_broker": 0.03,
        "join": 0.002,
        "leave": 0.002,
        "poison": 0.05,
        "outage": 0.002,
        "rollback": 0.15,
        "operator": 0.002,
        "killer": 0.02,
        "breaker": 0.03,
    }

    def __init__(self, rng, only=None):
        self.rng = rng
        chosen = [k for k in self.KINDS if rng.random() < 0.4] if only is None else list(only)
        self.rates = {k: self.KINDS[k] * rng.choice([0.3, 1, 3]) for k in chosen}
        self.calm = False
        self.fired = Counter()

    def hit(self, kind):
        if self.calm or kind not in self.rates or self.rng.random() >= self.rates[kind]:
            return False
        self.fired[kind] += 1
        return True


class Process:
    """A relay's process: everything it does with the outside passes its gate."""

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.crashed = False
        self.paused_until = 0.0
        self.open = []  # transactions, rolled back by the server when the process dies

    async def gate(self, mean):
        loop = asyncio.get_running_loop()
        await asyncio.sleep(min(self.world.rng.expovariate(1 / mean), 5 * LEASE))
        while True:
            if self.crashed:
                await loop.create_future()
            if loop.time() >= self.paused_until:
                return
            await asyncio.sleep(self.paused_until - loop.time())


class SimStore:
    """The store as one process reaches it: over a network that delays and loses."""

    def __init__(self, world, process):
        self._world = world
        self._inner = world.store
        self._process = process
        self.capabilities = self._inner.capabilities

    async def open(self):
        pass

    async def close(self):
        pass

    def __getattr__(self, name):
        call = getattr(self._inner, name)
        if name in ("transaction", "sync_transaction"):
            return call

        async def through_the_network(*args, **kwargs):
            world, chaos = self._world, self._world.chaos
            await self._process.gate(2 * LEASE if chaos.hit("slow_store") else 0.002)
            if name == "wait_for_change":
                return await call(*args, **kwargs)
            if name in WRITES:
                if chaos.hit("store_conflict"):
                    raise StoreConflictError("simulated deadlock")
                if chaos.hit("store_lost"):
                    if world.rng.random() < 0.5:
                        await call(*args, **kwargs)
                    raise StoreLostError("simulated cut")
                if chaos.hit("store_limbo"):
                    world.later(world.rng.uniform(0, 2 * LEASE), lambda: call(*args, **kwargs))
                    raise StoreLostError("simulated cut; the request is still on its way")
            result = await call(*args, **kwargs)
            if name == "settle":
                world.check_fence(args[0], result)
            await self._process.gate(0.002)
            return result

        return through_the_network


class SimBroker:
    """The broker as one relay reaches it; all arrivals go into the world's one log."""

    def __init__(self, world, process):
        self._world = world
        self._process = process
        self.capabilities = BrokerCapabilities()

    async def open(self):
        pass

    async def close(self):
        pass

    async def health(self):
        await self._process.gate(0.002)
        if self._world.broker_down:
            raise ConnectionError("simulated outage")

    async def publish(self, batch, desk):
        await self._process.gate(0.002)
        if any(record.id in self._world.breakers for record in batch):
            raise ConnectionError("simulated: one message closed the channel for all")
        runs = {}
        for record in batch:
            runs.setdefault(record.key_hash, []).append(record)
        await asyncio.gather(*(self._run(run, desk) for run in runs.values()))

    async def publish_alone(self, record, desk):
        await self.publish([record], desk)

    async def _run(self, run, desk):
        for n, record in enumerate(run):
            outcome = await self._one(record)
            if outcome is None:  # silence
                return
            desk.report(record, outcome)
            if outcome.verdict is not Verdict.CONFIRMED:
                for later in run[n + 1 :]:
                    desk.report(later, UNSENT)
                return

    async def _one(self, record):
        world, chaos = self._world, self._world.chaos
        await self._process.gate(LEASE if chaos.hit("slow_broker") else 0.001)
        if world.broker_down:
            return Outcome(Verdict.OUTAGE, "simulated outage")
        if record.id in world.poison:
            return Outcome(Verdict.FAILED, "simulated poison")
        if chaos.hit("fail"):
            return Outcome(Verdict.FAILED, "simulated failure")
        if chaos.hit("unknown_missing"):
            world.unsure.add(record.id)
            return Outcome(Verdict.UNKNOWN, "simulated lost request")
        world.arrive(record, self._process)
        if chaos.hit("unknown_arrived"):
            world.unsure.add(record.id)
            return Outcome(Verdict.UNKNOWN, "simulated lost reply")
        if chaos.hit("silent"):
            world.unsure.add(record.id)
            return None
        await self._process.gate(0.001)
        return Outcome(Verdict.CONFIRMED)


def sim_handlers(world, process):
    """Handlers in a relay's process, whose effects are one transaction with `accept`."""
    handlers = Handlers(transaction=lambda: _gated(world, process), time_limit_seconds=0.5)

    @handlers.on("sim")
    async def effect(event, tx):
        await process.gate(LEASE if world.chaos.hit("slow_broker") else 0.001)
        if event.id in world.killers:
            world.crash(process.name)
            await process.gate(0.001)
        if event.id in world.poison:
            raise ValueError("simulated poison")
        if world.chaos.hit("fail"):
            raise ValueError("simulated failure")
        tx.after_commit(lambda: world.arrive(event, process))

    return handlers


@asynccontextmanager
async def _gated(world, process):
    await process.gate(0.001)
    if world.broker_down:
        raise ConnectionError("simulated outage")
    tx = world.store.begin()
    process.open.append(tx)
    try:
        yield tx
        await process.gate(0.001)
        await tx.commit()
        await process.gate(0.001)
        if world.chaos.hit("unknown_arrived"):
            raise ConnectionError("simulated lost reply to a commit")
    finally:
        await tx.rollback()


class World:
    """Producers, relays, a store, a broker, and what was seen."""

    def __init__(self, rng, chaos, loop, *, keys, events, relays, settings, handlers=False):
        self.rng, self.chaos, self.loop = rng, chaos, loop
        self.store = MemoryStore(now_us=lambda: EPOCH_US + int(loop.time() * 1_000_000))
        self.outbox = Outbox()
        self.keys = [f"k{n}" for n in range(keys)]
        self.events = events
        self.relays_wanted = relays
        self.settings = settings
        self.handlers = handlers
        self.committed: dict[str, str | None] = {}  # id → key, in order of commit
        self.rolled_back: set[str] = set()
        self.poison: set[str] = set()
        self.killers: set[str] = set()  # their handler kills the process
        self.breakers: set[str] = set()  # sending them closes the channel for all in flight
        self.shares: list[int] = []
        self.buried: set[str] = set()
        self.replayed: set[str] = set()
        self.unsure: set[str] = set()
        self.arrivals: list[tuple[float, str, str | None, int]] = []
        self.arrived = Counter()
        self.broker_down = False
        self.relays: dict[str, tuple[Relay, Process]] = {}
        self.leaving: dict[str, tuple[Relay, Process]] = {}
        self._started = 0
        self._ids = 0
        self.lanes_lost = 0
        self.failures = 0
        self.unfenced: list[tuple[str, int]] = []
        self._background: set[asyncio.Task] = set()

    def observe(self, fact):
        if isinstance(fact, Lanes) and fact.change == "lost":
            self.lanes_lost += 1
        if isinstance(fact, Settled):
            self.failures += fact.failed

    def check_fence(self, settlement, lanes):
        """Only who holds a lane, by this token and by the store's clock, may change it (G5)."""
        leases, now = self.store.tables.leases[settlement.stream], self.store.now_us()
        for lane in lanes:
            lease = leases[lane]
            held = (lease.owner, lease.token) == (settlement.owner, settlement.leases[lane])
            if not held or lease.until_us <= now:
                self.unfenced.append((settlement.owner, lane))

    # -- what happens -------------------------------------------------------------------------
    def arrive(self, record, process):
        self.arrivals.append((self.loop.time(), record.id, record.key, record.seq))
        self.arrived[record.id] += 1

    def later(self, delay, call):
        async def wait():
            await asyncio.sleep(delay)
            await call()

        task = asyncio.ensure_future(wait())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def next_id(self):
        self._ids += 1
        return f"e{self._ids}"

    async def produce(self, locks, number):
        rng = self.rng
        made = 0
        while made < number:
            await asyncio.sleep(rng.expovariate(1 / 0.02))
            key = rng.choice([*self.keys, None]) if rng.random() < 0.9 else self.keys[0]
            count = rng.randint(1, 3)
            events = [Event("sim", {"n": n}, key=key, id=self.next_id()) for n in range(count)]
            lock = locks[key] if key else asyncio.Lock()
            async with lock:  # coordinated writers: both lock the same row before `add` (W8)
                tx = self.store.begin()
                await self.outbox.add_many(tx, events)
                await asyncio.sleep(rng.expovariate(1 / 0.02))  # late commits
                if self.chaos.hit("rollback"):
                    await tx.rollback()
                    self.rolled_back.update(e.id for e in events)
                else:
                    for event in events:
                        self.committed[event.id] = key
                        if self.chaos.hit("poison"):
                            self.poison.add(event.id)
                        elif self.handlers and self.chaos.hit("killer"):
                            self.killers.add(event.id)
                        elif not self.handlers and self.chaos.hit("breaker"):
                            self.breakers.add(event.id)
                    await tx.commit()
            made += count

    def start_relay(self):
        self._started += 1
        process = Process(self, f"relay{self._started}")
        relay = Relay(
            SimStore(self, process),
            sim_handlers(self, process) if self.handlers else SimBroker(self, process),
            clock=SimClock(self.loop),
            observers=[self],
            owner=f"{process.name}",
            retry=RetryPolicy(max_attempts=5, backoff=Constant(0.2)),
            lease_seconds=LEASE,
            poll_seconds=0.2,
            publish_seconds=0.8,
            stop_seconds=5.0,
            prune_seconds=5.0,
            outage_seconds=0.1,
            max_outage_seconds=0.5,
            misconfigured_seconds=0.3,
            **self.settings,
        )
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
            for task in worker._publishing:
                task.cancel()

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
            wanted = chaos.hit("join") or len(self.relays) < self.relays_wanted
            if wanted and len(self.relays) < 4:
                await self.start_relay()
            if chaos.hit("outage"):
                self.broker_down = True
                self.later(rng.uniform(0.05, 1.5), self._heal_broker)
            if chaos.hit("operator"):
                await self._operate()

    async def _leave(self, name):
        if name in self.leaving:
            await self.leaving[name][0].stop()
            self.leaving.pop(name, None)

    async def _heal_broker(self):
        self.broker_down = False

    async def _operate(self):
        """A person buries an event that failed, or replays a dead one: both take its lane away."""
        rows = list(self.store.tables.rows.values())
        failed = [s for s in rows if s.state == "failed"]
        dead = [s for s in rows if s.state == "dead"]
        if failed and self.rng.random() < 0.5:
            chosen = self.rng.choice(failed).row.id
            self.buried.add(chosen)
            await self.store.bury([chosen], "by hand")
        elif dead:
            chosen = self.rng.choice(dead).row.id
            self.replayed.add(chosen)
            await self.store.replay([chosen])

    async def run(self):
        rng = self.rng
        locks = {key: asyncio.Lock() for key in self.keys}
        for _ in range(self.relays_wanted):
            await self.start_relay()
        nemesis = asyncio.ensure_future(self.nemesis())
        each = max(1, self.events // 3)
        await asyncio.gather(*(self.produce(locks, each) for _ in range(3)))
        await asyncio.sleep(rng.uniform(0, 3))
        self.chaos.calm = True
        await nemesis
        self.broker_down = False
        healed = self.loop.time()
        while self.unfinished():
            if not self.relays:
                await self.start_relay()
            await asyncio.sleep(0.1)
            if self.loop.time() > healed + (60 + 15 * len(self.killers)) * LEASE:
                break
        if len(self.relays) > 1:
            await asyncio.sleep(10 * LEASE)
            self.shares = [len(relay._office.keeper.held) for relay, _ in self.relays.values()]
        for relay, _ in [*self.relays.values(), *self.leaving.values()]:
            await relay.stop()

    def unfinished(self):
        return [s for s in self.store.tables.rows.values() if s.stage != "over"]
