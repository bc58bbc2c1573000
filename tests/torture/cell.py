"""One cell: a store, a destination, producers, relays and a nemesis; then heal, drain, check."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from postroom.record import State
from postroom.store import Filter
from postroom.url import Url
from postroom.wiring import load_store
from tests.torture import faults
from tests.torture.checker import Evidence, check
from tests.torture.crew import Crew, handles, megabytes
from tests.torture.history import History, read
from tests.torture.nemesis import RELAYS_LEAST, Nemesis
from tests.torture.worlds import open_world

LEASE = 2.0
KEYS = 60
PRODUCERS = 3
DRAIN_SECONDS = 180  # a limit of liveness, not of speed
MOST_MEGABYTES = 700
MORE_HANDLES = 20
PAGE = 1_000


@dataclass
class Ground:
    """Where a cell takes place: addresses, servers that can be harmed, wires that can be cut."""

    store_url: str
    relay_store_url: str
    tap: object
    relay_broker_url: str
    store: object = None
    broker: object = None
    store_wire: object = None
    broker_wire: object = None
    secret: str = ""

    @property
    def wires(self):
        names = {"store": self.store_wire, "broker": self.broker_wire}
        return [name for name, wire in names.items() if wire is not None]


class Cell:
    """A run that can be repeated: its faults follow from the seed, or are given."""

    def __init__(self, ground, *, seed, events, count, only=None, progress=None):
        self.ground, self.seed, self.events = ground, seed, events
        kind = Url.parse(ground.store_url).scheme
        choices = faults.kinds(kind, ground.tap.kind, wires=ground.wires)
        drawn = faults.plan(seed, count, choices)
        self.plan = [fault for fault in drawn if only is None or fault.number in only]
        self.folder = Path(tempfile.mkdtemp(prefix="postroom-torture-"))
        self.history = History(self.folder / "nemesis.jsonl", "nemesis")
        self.crew = Crew(
            self.folder, store=ground.relay_store_url, broker=ground.relay_broker_url, lease=LEASE
        )
        self.fired = Counter()
        self._progress = progress or (lambda text: None)
        self._lease_tap = None

    def run(self):
        """Return the summary; its `violations` are empty when every promise held."""
        began = time.monotonic()
        ground = self.ground
        self._prepare()
        nemesis = Nemesis(
            self.history, self.crew, store=ground.store, broker=ground.broker,
            store_wire=ground.store_wire, broker_wire=ground.broker_wire,
            url=ground.store_url, lease=LEASE,
        )  # fmt: skip
        try:
            self.crew.keep(RELAYS_LEAST)
            self.crew.produce(
                ground.store_url, count=PRODUCERS, events=self.events, seed=self.seed, keys=KEYS,
                poison_size=ground.tap.poison_size,
            )  # fmt: skip
            self._torment(nemesis)
            nemesis.heal()
            violations = [*self._drain(), *self._used()]
        finally:
            self.crew.end()
        violations += self._judge()
        violations += [f"a producer broke: exit {code}" for code in self.crew.failed_producers]
        violations += self._secrets()
        summary = {
            "store": Url.parse(ground.store_url).scheme, "broker": ground.tap.kind,
            "seed": self.seed, **self.figures, "faults": sum(self.fired.values()),
            "kinds": dict(sorted(self.fired.items())), "violations": violations,
            "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip
        if violations:
            summary["logs"] = str(self.folder)
        else:
            shutil.rmtree(self.folder)
        return summary

    def _prepare(self):
        asyncio.run(_migrate(self.ground.store_url))
        world = open_world(self.ground.store_url)
        world.make_tables([f"k{n}" for n in range(KEYS)])
        world.close()
        self.ground.tap.prepare()
        if Url.parse(self.ground.store_url).scheme == "mongodb":
            from tests.torture.mongo_world import LeaseTap

            self._lease_tap = LeaseTap(self.ground.store_url)
            self._lease_tap.start()

    def _torment(self, nemesis):
        """Fire by progress until all is written and all has fired."""
        waiting = list(self.plan)
        stuck = time.monotonic() + 60
        before = -1
        while waiting or self.crew.producing:
            written = self._written()
            if written != before:
                before, stuck = written, time.monotonic() + 120
                self._progress(f"{written:,} of {self.events:,} events, {len(waiting)} faults left")
            share = 1.0 if not self.crew.producing else written / self.events
            if waiting and share >= waiting[0].at:
                fault = waiting.pop(0)
                nemesis.do(fault)
                self.fired[fault.kind] += 1
            elif time.monotonic() > stuck:
                self.history.note("violation", text="I9 producers make no progress")
                return
            else:
                time.sleep(0.05)

    def _written(self):
        try:
            world = open_world(self.ground.store_url)
            try:
                return world.written()
            finally:
                world.close()
        except Exception:
            return -1

    def _drain(self):
        """Wait until nothing is left (I9)."""
        deadline = time.monotonic() + DRAIN_SECONDS
        counts = {}
        while time.monotonic() < deadline:
            try:
                counts = asyncio.run(_counts(self.ground.store_url))
                if not sum(counts[state] for state in ("pending", "processing", "failed")):
                    return []
            except Exception as error:
                counts = {"error": str(error)}
            self.crew.keep(RELAYS_LEAST)
            time.sleep(0.3)
        return [f"I9 not drained {DRAIN_SECONDS} s after healing: {counts}"]

    def _used(self):
        """Compare what the old relays hold with what a fresh one does (I10)."""
        old = list(self.crew.alive)
        self.crew.start()
        fresh = self.crew.alive[-1]
        time.sleep(3 * LEASE)
        most = handles(fresh.process.pid) + MORE_HANDLES
        found = []
        self.memory = max((megabytes(relay.process.pid) for relay in old), default=0)
        for relay in old:
            held, size = handles(relay.process.pid), megabytes(relay.process.pid)
            if held > most:
                found.append(f"I10 {relay.name} holds {held} handles, a fresh one {most}")
            if size > MOST_MEGABYTES:
                found.append(f"I10 {relay.name} uses {size} MB")
        return found

    def _judge(self):
        world = open_world(self.ground.store_url)
        try:
            committed = world.committed()
            arrivals = self.ground.tap.arrivals(world)
            leases = world.leases() if self._lease_tap is None else self._lease_tap.end()
        finally:
            world.close()
        dead = asyncio.run(_dead(self.ground.store_url))
        evidence = Evidence(
            committed, arrivals, dead, leases, read(self.folder), self.ground.tap.exactly_once
        )
        copies = len(arrivals) - len({event_id for event_id, *_ in arrivals})
        self.figures = {
            "events": len(committed), "dead": len(dead), "copies": copies,
            "takes": len(leases), "memory_mb": self.memory,
        }  # fmt: skip
        return check(evidence)

    def _secrets(self):
        secret = self.ground.secret
        if not secret:
            return []
        return [
            f"I11 the secret is in {path.name}"
            for path in self.folder.iterdir()
            if secret in path.read_text(errors="replace")
        ]


async def _migrate(url):
    await load_store(url).migrate()


async def _counts(url):
    store = load_store(url)
    await store.open()
    try:
        return (await store.stats()).counts
    finally:
        await store.close()


async def _dead(url):
    """Return {id: (key, n, size)} of all dead letters."""
    store = load_store(url)
    await store.open()
    found, after = {}, 0
    try:
        while True:
            page = await store.find(Filter(state=State.DEAD, limit=PAGE, after_seq=after))
            for record in page:
                data = json.loads(record.payload)
                found[record.id] = (data["k"], data["n"], len(data["padding"]))
            if len(page) < PAGE:
                return found
            after = page[-1].seq
    finally:
        await store.close()


def report(summary):
    """Print one line of JSON; True if all is well."""
    print(json.dumps(summary), flush=True)
    for violation in summary["violations"]:
        print(violation, file=sys.stderr)
    return not summary["violations"]
