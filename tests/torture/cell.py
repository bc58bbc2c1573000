"""One cell: a store, a destination, producers, relays and a nemesis; then heal, drain, check."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from postroom.wiring import load_store
from tests.torture.checker import check
from tests.torture.worlds import open_world

LEASE = 2.0
KEYS = 40


class Cell:
    def __init__(self, store_url, tap, *, seed, events, faults, servers=()):
        self.url, self.tap, self.seed = store_url, tap, seed
        self.events, self.faults_wanted = events, faults
        self.servers = list(servers)  # (kind, server) that may be killed or frozen
        self.rng = random.Random(seed)
        self.fired = Counter()
        self.folder = Path(tempfile.mkdtemp(prefix="postroom-torture-"))
        self.relays: list[subprocess.Popen] = []
        self.producers: list[subprocess.Popen] = []

    # -- processes ----------------------------------------------------------------------------
    def spawn(self, *command):
        env = {**os.environ, "POSTROOM_TORTURE_STORE": self.url}
        with (self.folder / "log.txt").open("a") as log:
            return subprocess.Popen([sys.executable, *command], stdout=log, stderr=log, env=env)

    def start_relay(self):
        self.relays.append(
            self.spawn(
                "-m", "postroom", "run", "--store", self.url, "--broker", self.tap.broker,
                "--lease-seconds", str(LEASE), "--poll-seconds", "0.2",
            )
        )  # fmt: skip

    def start_producer(self, n):
        share = self.events // 3
        self.producers.append(
            self.spawn(
                "-m", "tests.torture", "produce", self.url, str(self.seed * 10 + n), str(share)
            )
        )

    # -- the run ------------------------------------------------------------------------------
    def run(self):
        began = time.monotonic()
        asyncio.run(load_store(self.url).migrate())
        world = open_world(self.url)
        world.make_tables([f"k{n}" for n in range(KEYS)])
        getattr(self.tap, "prepare", lambda: None)()
        try:
            for n in range(3):
                self.start_producer(n)
            for _ in range(2):
                self.start_relay()
            self.torment()
            self.heal()
            violations = self.drain()
        finally:
            self.end()
        world = open_world(self.url)
        committed = world.committed()
        arrivals = self.tap.arrivals(world)
        found, copies = check(
            committed, self.dead(), arrivals, exactly_once=self.tap.exactly_once,
            faults=sum(self.fired.values()),
        )  # fmt: skip
        world.close()
        violations += found
        summary = {
            "store": self.url.partition(":")[0], "broker": self.tap.broker.partition(":")[0],
            "seed": self.seed, "events": len(committed), "arrivals": len(arrivals),
            "copies": copies, "faults": dict(self.fired), "violations": violations,
            "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip
        print(json.dumps(summary), flush=True)
        if violations:
            print(f"logs: {self.folder}", file=sys.stderr)
        return violations

    def torment(self):
        """Fire faults by progress, not by time, until producers are done and enough have fired."""
        step = max(1, self.events // (self.faults_wanted + 1))
        at = step
        deadline = time.monotonic() + 60 + self.events / 50
        while time.monotonic() < deadline:
            written = self.progress()
            for n, producer in enumerate(self.producers):
                if producer.poll() == 3:  # died within a transaction, as told: another goes on
                    self.fired["producer died"] += 1
                    self.seed += 1
                    self.start_producer(n)
                    self.producers[n] = self.producers.pop()
                    break
            done = all(p.poll() is not None for p in self.producers)
            if written >= at or (done and sum(self.fired.values()) < self.faults_wanted):
                self.fire()
                at += step
            elif done:
                return
            time.sleep(0.05)

    def progress(self):
        try:
            world = open_world(self.url)
            try:
                return world.rows("SELECT count(*) FROM torture_log")[0][0]
            finally:
                world.close()
        except Exception:
            return 0

    def fire(self):
        choices = ["kill relay", "pause relay", "kill relay", "add relay", "stop relay"]
        choices += [f"{what} {kind}" for kind, _ in self.servers for what in ("kill", "freeze")]
        choice = self.rng.choice(choices)
        what, _, whom = choice.partition(" ")
        self.relays = [r for r in self.relays if r.poll() is None]
        if whom == "relay":
            self.torment_relay(what)
        else:
            server = dict(self.servers)[whom]
            if what == "kill":
                server.kill()
                time.sleep(self.rng.uniform(0.1, 1.0))
                server.restart()
            else:
                server.freeze()
                time.sleep(self.rng.uniform(0.5, 2) * LEASE)
                server.thaw()
        self.fired[choice] += 1
        while len(self.relays) < 2:
            self.start_relay()

    def torment_relay(self, what):
        victim = self.rng.choice(self.relays) if self.relays else None
        if what == "add":
            if len(self.relays) < 5:
                self.start_relay()
        elif victim is None:
            return
        elif what == "kill":
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            self.relays.remove(victim)
        elif what == "pause":
            victim.send_signal(signal.SIGSTOP)
            time.sleep(self.rng.uniform(0.5, 3) * LEASE)
            victim.send_signal(signal.SIGCONT)
        elif what == "stop":
            victim.send_signal(signal.SIGTERM)
            self.relays.remove(victim)
            victim.wait(60)

    def heal(self):
        for relay in self.relays:
            if relay.poll() is None:
                relay.send_signal(signal.SIGCONT)
        if not [r for r in self.relays if r.poll() is None]:
            self.start_relay()

    def drain(self):
        """Wait until nothing is left; generous, for it is a limit of liveness, not of speed."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                counts = asyncio.run(self.stats())
                if not sum(counts[s] for s in ("pending", "processing", "failed")):
                    return []
            except Exception:
                pass
            time.sleep(0.2)
        return [f"I9 liveness: not drained after 120 s: {counts}"]

    async def stats(self):
        store = load_store(self.url)
        await store.open()
        try:
            return (await store.stats()).counts
        finally:
            await store.close()

    def dead(self):
        async def find():
            from postroom.record import State
            from postroom.store import Filter

            store = load_store(self.url)
            await store.open()
            try:
                return [r.id for r in await store.find(Filter(state=State.DEAD, limit=1_000))]
            finally:
                await store.close()

        return asyncio.run(find())

    def end(self):
        for process in [*self.relays, *self.producers]:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in [*self.relays, *self.producers]:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
