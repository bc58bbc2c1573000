"""One simulated process: its gate to the world, and the store and the destination behind it."""

import asyncio
from contextlib import asynccontextmanager

from postroom.broker import CONFIRMED, UNSENT, Broker, BrokerCapabilities, Outcome, Verdict
from postroom.engine.handlers.dispatch import SKIPPED_TYPE
from postroom.engine.handlers.handlers import Handlers
from postroom.errors import (
    StoreLockedError,
    StoreRefusedError,
    StoreRetryableError,
    StoreUnknownError,
)

LEASE = 1.0
GONE = "gone-"  # topics that are missing until the faults are over begin so
WRITES = {"settle", "heartbeat", "take", "retake", "release", "repair_blocks", "stage", "leave"}


class Process:
    """A relay's process: everything it does with the outside passes its gate."""

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.crashed = False
        self.paused_until = 0.0
        self.knows = {}  # pauses → since when its relay knows them
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
        self.tables = self._inner.tables

    async def open(self):
        pass

    async def close(self):
        pass

    def __getattr__(self, name):
        call = getattr(self._inner, name)
        if name in ("transaction", "sync_transaction", "complaints"):
            return call
        if name == "settle":
            call = self._world.noting_starts(call)

        async def through_the_network(*args, **kwargs):
            world, chaos = self._world, self._world.chaos
            await self._process.gate(2 * LEASE if chaos.hit("slow_store") else 0.002)
            if name == "wait_for_change":
                return await call(*args, **kwargs)
            if name == "heartbeat" and chaos.hit("stuck_heartbeat"):
                await asyncio.sleep(world.rng.uniform(0.2, 3) * LEASE)
            if name in WRITES:
                args = await self._past_locks(name, args)
                if chaos.hit("store_conflict"):
                    raise StoreRetryableError("simulated deadlock")
                if chaos.hit("store_lost"):
                    if world.rng.random() < 0.5:
                        await call(*args, **kwargs)
                    raise StoreUnknownError("simulated cut")
                if chaos.hit("store_limbo"):
                    life = world.life

                    async def arrive():
                        if world.life == life:  # else it went to the server that is gone
                            await call(*args, **kwargs)

                    world.later(world.rng.uniform(0, 2 * LEASE), arrive)
                    raise StoreUnknownError("simulated cut; the request is still on its way")
            result = await call(*args, **kwargs)
            if name == "settle":
                world.check_fence(args[0], result)
                world.check_use(self._process, args[0], result)
            await self._process.gate(0.002)
            return result

        return through_the_network

    async def _past_locks(self, name, args):
        """Leave locked lanes out of a call, as a store does that never waits for them; a settle
        waits a while and fails.
        """
        world = self._world
        if name == "settle":
            (settlement,) = args
            lanes = settlement.leases
            if world.locked(settlement.stream, lanes):
                await asyncio.sleep(LEASE / 10)
                if world.locked(settlement.stream, lanes):
                    raise StoreLockedError("simulated: a lane is locked")
            refused = {failure.record.id for failure in settlement.failed} & world.refused
            if refused and not world.chaos.calm:
                raise StoreRefusedError("simulated: a value that does not fit")
        elif name in ("heartbeat", "retake", "release"):
            place = 3 if name == "heartbeat" else 2
            free = {n: t for n, t in args[place].items() if not world.locked(args[0], [n])}
            return (*args[:place], free, *args[place + 1 :])
        elif name in ("take", "stage"):
            place = 2 if name == "take" else 1
            free = [n for n in args[place] if not world.locked(args[0], [n])]
            return (*args[:place], free, *args[place + 1 :])
        return args


class SimBroker(Broker):
    """The broker as one relay reaches it; all arrivals go into the world's one log."""

    capabilities = BrokerCapabilities()

    def __init__(self, world, process):
        self._world = world
        self._process = process

    async def open(self):
        pass

    async def close(self):
        pass

    async def health(self):
        await self._process.gate(0.002)
        self._cut()
        if self._world.broker_down:
            raise ConnectionError("simulated outage")

    def _cut(self):
        if self._world.chaos.hit("cut"):
            raise asyncio.CancelledError("simulated: the driver cancelled its future")

    async def publish(self, batch, reporter):
        for record in batch:
            self._world.operators.sending(self._process, record)
        await self._process.gate(0.002)
        self._cut()
        if any(record.id in self._world.breakers for record in batch):
            raise ConnectionError("simulated: one message closed the channel for all")
        runs = {}
        for record in batch:
            runs.setdefault(record.key_hash, []).append(record)
        await asyncio.gather(*(self._run(run, reporter) for run in runs.values()))

    async def publish_alone(self, record, reporter):
        await self.publish([record], reporter)

    async def _run(self, run, reporter):
        for n, record in enumerate(run):
            outcome = await self._one(record)
            if outcome is None:  # silence
                return
            reporter.report(record, outcome)
            if outcome.verdict is not Verdict.CONFIRMED:
                for later in run[n + 1 :]:
                    reporter.report(later, self._behind_a_failure(later))
                return

    def _behind_a_failure(self, record):
        if self._world.broker_down or not self._world.chaos.hit("hasty"):
            return UNSENT
        self._world.hasty.add(record.id)
        return CONFIRMED

    async def _one(self, record):
        world, chaos = self._world, self._world.chaos
        await self._process.gate(LEASE if chaos.hit("slow_broker") else 0.001)
        if world.broker_down:
            return Outcome(Verdict.OUTAGE, "simulated outage")
        if record.topic.startswith(GONE) and not chaos.calm:
            return Outcome(Verdict.MISCONFIGURED, "simulated: no such topic")
        if record.id in world.poison:
            return Outcome(Verdict.FAILED, "simulated poison")
        if chaos.hit("fail"):
            return Outcome(Verdict.FAILED, "simulated failure")
        if chaos.hit("unknown_missing"):
            world.unsure.add(record.id)
            return Outcome(Verdict.UNKNOWN, "simulated lost request")
        world.arrive(record)
        if chaos.hit("unknown_arrived"):
            world.unsure.add(record.id)
            return Outcome(Verdict.UNKNOWN, "simulated lost reply")
        if chaos.hit("silent"):
            world.unsure.add(record.id)
            return None
        await self._process.gate(0.001)
        return CONFIRMED


def sim_handlers(world, process):
    """Handlers in a relay's process, whose effects are one transaction with `accept`."""
    handlers = Handlers(
        name="sim",
        transaction=lambda: _gated(world, process),
        time_limit_seconds=0.5,
        **world.sharing,
    )

    @handlers.on(SKIPPED_TYPE)
    @handlers.on("sim")
    async def effect(event, tx):
        if world.started_in.get(event.id) != world.life:
            # Its start was counted by the server that is gone. Its transaction would have to wait for
            # the new one and find it within the time limit: see the promises page.
            raise ConnectionError("simulated: the server that counted its start is gone")
        await process.gate(LEASE if world.chaos.hit("slow_broker") else 0.001)
        if event.id in world.killers:
            world.crash(process.name)
            await process.gate(0.001)
        if event.id in world.poison:
            raise ValueError("simulated poison")
        if world.chaos.hit("fail"):
            raise ValueError("simulated failure")
        tx.after_commit(lambda: world.arrive(event))

    return handlers


def cut(tx):
    """The server of a transaction has gone: whatever is asked of it fails."""
    if tx._over:
        return
    tx.abort()

    def gone(*_):
        raise ConnectionError("simulated: the server has gone")

    tx.check = tx.standing = gone


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
