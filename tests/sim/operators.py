"""Operators of a simulated world: pauses, limits, and events that have a time to be sent by."""

from collections import defaultdict, deque

from postroom.engine.controls import LOOK_SECONDS
from postroom.engine.relay import key_run
from postroom.model.clock import from_microseconds
from postroom.model.controls import CONSUMER, STREAM, TOPIC
from postroom.observer import ControlChanged, Settled
from postroom.record import State
from tests.sim.process import LEASE

EPOCH_US = 1_800_000_000_000_000
SECOND = 1_000_000
WINDOW = 1.0
SLACK = 0.4  # a look at the controls travels, and so does the start of a handler
# A look, or what was decided before it, takes longer: nothing is said about how long.
SLOW = {"slow_store", "pause"}
SLOW_STARTS = SLOW | {"store_conflict", "store_lost", "store_limbo", "locked_lane", "refused"}
UNTOLD = {"crash", "store_lost", "store_limbo", "set_back", "killer", "pause", "slow_store"}


class Operators:
    """Pauses and limits of streams, topics and consumers, and what was sent in spite of them."""

    def __init__(self, world, rng):
        self.world, self.rng = world, rng
        self.since = {}  # control → when the pause began that is in force, by the loop's clock
        self.limits = {}  # control → its limits, and since when they are in force
        self.moments = defaultdict(deque)  # control → when events were sent, in the last window
        self.starts = []  # of relays
        self.sent = []  # in spite of a pause or a limit
        self.late = []  # sent although their time was over
        self.hasty = []  # expired although their time was not over
        self.expired = {}  # id → how often it was written
        self.told = 0  # of expired events, by relays
        self.consumers = world.handlers and rng.random() < 0.3
        key_run.host_microseconds = self.host_time

    def host_time(self):
        return EPOCH_US + int(self.world.loop.time() * SECOND)

    def watch(self, process):
        """Return an observer that notes what the relay of a process knows."""
        self.starts.append(self.world.loop.time())
        return _Knowing(self, process)

    # -- events with a time to be sent by -----------------------------------------------------
    def deliver_by(self, due_us):
        """Return until when an event is to be sent; None for most."""
        if not self.world.chaos.hit("expiry"):
            return None
        after = max(due_us or 0, self.world.store_time())
        most = self.rng.choice([0.03, 2 * LEASE])
        return from_microseconds(after + int(self.rng.uniform(0.001, most) * SECOND))

    def note_settle(self, settlement, lanes):
        now = self.world.store_time()
        for record in settlement.truly_expired(lanes):
            self.expired[record.id] = self.expired.get(record.id, 0) + 1
            seq = self.world.store.data.ids.get(record.id)
            stored = None if seq is None else self.world.store.data.rows[seq]
            # A settle that arrives late names an event that was sent meanwhile: it stays done.
            if record.expires_us > now and stored is not None and stored.state == State.EXPIRED:
                self.hasty.append(record.id)
        for record in settlement.starts:
            self.sending(None, record)

    # -- pauses -------------------------------------------------------------------------------
    def _places(self):
        kinds = [STREAM, TOPIC, TOPIC] if not self.consumers else [STREAM, CONSUMER]
        return [(kind, stream) for kind in kinds for stream in self.world.streams]

    async def act(self):
        """Pause or resume something, for a while or until further notice."""
        rng, world = self.rng, self.world
        if world.chaos.hit("controls"):
            kind, name = rng.choice(self._places())
            if (kind, name) in self.since:
                await world.store.set_control(kind, name, pause=False, by="sim")
            else:
                seconds = None if rng.random() < 0.3 else rng.uniform(0.2, 6) * LEASE
                await world.store.set_control(kind, name, pause=True, seconds=seconds, by="sim")
        if world.chaos.hit("limits"):
            kind, name = rng.choice([(k, n) for k, n in self._places() if k != CONSUMER])
            rate = rng.choice([None, rng.uniform(0.5, 4), rng.uniform(4, 40)])
            most = rng.choice([None, 1, 5])
            await world.store.set_limits(kind, name, per_second=rate, in_flight=most, by="sim")
        await self.look()

    async def look(self):
        now = self.world.loop.time()
        controls = await self.world.store.controls()
        limits = {(c.kind, c.name): (c.max_per_second, c.max_in_flight) for c in controls}
        self.limits = {
            place: found if (found := self.limits.get(place)) and found[0] == rate else (rate, now)
            for place, (rate, _) in limits.items()
            if rate is not None
        }
        paused = [(c.kind, c.name) for c in controls if c.paused]
        self.since = {place: self.since.get(place, now) for place in paused}

    async def resume_all(self):
        await self.look()
        for kind, name, *_ in await self.world.store.controls():
            if kind != CONSUMER:
                await self.world.store.set_limits(
                    kind, name, per_second=None, in_flight=None, by="sim"
                )
        for kind, name in self.since:
            await self.world.store.set_control(kind, name, pause=False, by="sim")
        self.since, self.limits = {}, {}

    # -- checks -------------------------------------------------------------------------------
    def sending(self, process, record):
        """An event is handed to its destination, or the start of its handler is written."""
        now, rates = self.world.loop.time(), set(self.world.chaos.rates)
        places = [(STREAM, record.stream)]
        places += [(CONSUMER, record.stream)] if self.consumers else [(TOPIC, record.topic)]
        for place in places:
            if process is not None and process.knows.get(place, now) < now:
                self.sent.append(f"{record.id} at {now:.3f}, {place} was known to be paused")
            slow = rates & (SLOW if process is not None else SLOW_STARTS)
            if not slow and now - self.since.get(place, now) > LOOK_SECONDS + SLACK:
                self.sent.append(f"{record.id} at {now:.3f}, {place} was paused")
            self._sent_at(place, now, slow)
        if record.expires_us is None or self.world.chaos.fired["clock"]:
            return
        if record.state == "processing":  # a handler that began in time, and whose relay died
            return
        slack = 0 if process is not None else int(SLACK * SECOND)
        if (process is not None or not rates & SLOW_STARTS) and (
            record.expires_us + slack <= self.host_time()
        ):
            self.late.append(record.id)

    def _sent_at(self, place, now, slow):
        """Compare what was sent in the last second with the limit, if it was in force that long.

        Each relay may begin with one event, and send those of a quarter of a second at once. A topic
        has its limit in each stream.
        """
        moments = self.moments[place]
        moments.append(now)
        while moments[0] <= now - WINDOW:
            moments.popleft()
        rate, since = self.limits.get(place, (None, now))
        if slow or rate is None or now - since <= LOOK_SECONDS + SLACK + WINDOW:
            return
        relays = len(self.world.relays) + len(self.world.leaving)
        relays += sum(at > now - WINDOW - LEASE for at in self.starts)
        if len(moments) > rate * WINDOW + relays * (1 + rate / 4) + 1:
            self.sent.append(f"{len(moments)} in a second of {place}, which has a limit of {rate}")

    def violations(self):
        found = [f"sent in spite of an operator: {line}" for line in self.sent[:3]]
        if self.late:
            found.append(f"sent after their time: {self.late[:3]} ({len(self.late)} in all)")
        if self.hasty:
            found.append(f"expired before their time: {self.hasty[:3]}")
        written = sum(self.expired.values())
        if self.told > written or (
            self.told < written and not UNTOLD & set(self.world.chaos.rates)
        ):
            found.append(f"{written} events expired, {self.told} were counted")
        return found


class _Knowing:
    """Notes which pauses a relay knows, and counts what it tells."""

    def __init__(self, operators, process):
        self._operators, self._process = operators, process

    def observe(self, fact):
        if isinstance(fact, Settled):
            self._operators.told += fact.expired
        if isinstance(fact, ControlChanged):
            if fact.paused:
                self._process.knows[fact.kind, fact.name] = self._operators.world.loop.time()
            else:
                self._process.knows.pop((fact.kind, fact.name), None)
