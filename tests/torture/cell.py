"""One cell: a store, a destination, all the processes and a nemesis; then heal, drain, check."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from postroom.model.url import Url
from tests.torture import faults
from tests.torture.checker import Evidence, check
from tests.torture.crew import Crew, handles, megabytes
from tests.torture.excerpt import excerpt
from tests.torture.foreign import found_in
from tests.torture.history import History, read
from tests.torture.nemesis import CONSUMERS, RELAYS_LEAST, Nemesis
from tests.torture.remains import counts, dead_letters, migrate, operated, unfinished
from tests.torture.worlds import MISCHIEF, SECRET, guilty_of, is_strict, open_world

LEASE = 2.0
KEYS = [f"k{n}" for n in range(60)]
PRODUCERS = 3
EVENTS_PER_SECOND = 250  # at most, so that there is traffic during every fault
FAULTS_AHEAD = 6  # producers wait when so many faults are due and not yet over, or fewer
EVENTS_AHEAD = 4_000  # … and when so many have had no effect yet
FOREIGN_LEAST, EVENTS_PER_FOREIGN = 60, 20
STUCK_SECONDS = 120
# Without any progress, far more than three leases and the longest pause (T9): a limit of liveness,
# not of speed. How long it took is in the summary. RabbitMQ may need a minute to bring a queue back.
DRAIN_SECONDS = {"handlers": 60, "kafka": 60, "rabbitmq": 120}
START_SECONDS = 120
CLOSE_SECONDS = 30
MORE_MEGABYTES = 300
MORE_HANDLES = 20 + 2 * 10  # some, and two pools of ten connections that fill with the work


class Cell:
    """A run that can be repeated: its faults follow from the seed, or are given."""

    def __init__(
        self,
        ground,
        *,
        seed,
        events,
        count,
        only=None,
        kinds=None,
        mode="direct",
        keep=False,
        progress=None,
    ):
        self.ground, self.seed, self.events = ground, seed, events
        kind = Url.parse(ground.store_url).scheme
        disk = ground.disk is not None
        choices = faults.kinds(kind, ground.tap.kind, wires=ground.wires, disk=disk)
        drawn = faults.plan(seed, count, kinds or choices)
        self.plan = [fault for fault in drawn if only is None or fault.number in only]
        self.folder = Path(tempfile.mkdtemp(prefix="postroom-torture-"))
        self.history = History(self.folder / "nemesis.jsonl", "nemesis")
        self.crew = Crew(self.folder, ground.places, ground.store_url, lease=LEASE, mode=mode)
        self.keep = keep
        self.seconds = {}
        self._progress = progress or (lambda text: None)
        self._change_tap = None
        self._looker = None
        self._began = time.monotonic()

    def run(self):
        """Return the summary; its `violations` are empty when every promise held."""
        began = time.monotonic()
        self._prepare()
        nemesis = Nemesis(self.history, self.crew, self.ground, lease=LEASE)
        try:
            self.crew.keep("relay", RELAYS_LEAST)
            if "consumer" in self.crew.places:
                self.crew.keep("consumer", CONSUMERS)
            self.crew.produce(
                self.ground.producer_store_url, count=PRODUCERS, events=self.events, seed=self.seed,
                keys=len(KEYS), oversize=self.ground.tap.oversize,
            )  # fmt: skip
            self.crew.send_foreign(
                self.ground.store_url, self.ground.foreign_url,
                count=max(FOREIGN_LEAST, self.events // EVENTS_PER_FOREIGN),
                events=self.events // PRODUCERS, seed=self.seed,
            )  # fmt: skip
            self._lap("start")
            self._torment(nemesis)
            nemesis.rest()
            self._lap("torment")
            nemesis.heal()
            violations = self._drain()
            self._lap("drain")
            violations += self._used()
            violations += self.crew.fallen
        finally:
            self.crew.end()
        violations += self._left_open()
        self._lap("end")
        try:
            violations += self._judge()
        except Exception:
            self._keep_logs()
            raise
        violations += [f"a producer broke: exit {code}" for code in self.crew.failed_producers]
        violations += self._secrets()
        self._lap("check")
        return self._summary(violations, time.monotonic() - began)

    def _summary(self, violations, seconds):
        fired = self._fired()
        summary = {
            "store": Url.parse(self.ground.store_url).scheme, "broker": self.ground.tap.kind,
            "seed": self.seed, **self.figures, "faults": sum(fired.values()),
            "missed": len(self.plan) - sum(fired.values()),
            "kinds": dict(sorted(fired.items())), "violations": violations,
            "seconds": round(seconds, 1), "laps": self.seconds,
        }  # fmt: skip
        if violations or self.keep:
            self._keep_logs()
            summary |= {"story": self.story, "logs": str(self.folder)}
        else:
            shutil.rmtree(self.folder)
        return summary

    def _fired(self):
        """Count the faults that came off, by what the nemesis has noted."""
        kinds = {fault.number: fault.kind for fault in self.plan}
        lines = read(self.folder, "nemesis.jsonl")
        return Counter(kinds[line["number"]] for line in lines if line["what"] == "mended")

    def _keep_logs(self):
        """What the servers said about it; they are about to go."""
        for name in ("store", "broker"):
            server = getattr(self.ground, name)
            for n, one in enumerate(getattr(server, "members", [server] if server else [])):
                with suppress(OSError):
                    shutil.copy(one.log, self.folder / f"{name}-server-{n}.log")

    def _lap(self, name):
        now = time.monotonic()
        self.seconds[name], self._began = round(now - self._began, 1), now

    # -- the run ------------------------------------------------------------------------------
    def _prepare(self):
        asyncio.run(migrate(self.ground.store_url))
        world = open_world(self.ground.store_url)
        world.make_tables(KEYS)
        self.ground.tap.prepare()
        if Url.parse(self.ground.store_url).scheme == "mongodb":
            from tests.torture.mongo_world import ChangeTap

            self._change_tap = ChangeTap(self.ground.store_url)
            self._change_tap.prepare(world.database)
            self._change_tap.start()
        world.close()

    def _torment(self, nemesis):
        """Let producers write and fire by their progress, until all is written and has fired."""
        waiting = list(self.plan)
        ahead = min(FAULTS_AHEAD, 1 + len(waiting) // 10)
        began = time.monotonic()
        stuck, before, sent = began + STUCK_SECONDS, -1, 0
        while waiting or self.crew.producing:
            allowed = EVENTS_PER_SECOND * (time.monotonic() - began)
            if waiting:  # when all have fired, nothing is waited for
                pace = (nemesis.done + ahead) / len(self.plan)
                allowed = min(allowed, pace * self.events)
            written, happened = self._progress_made()
            self.crew.allow(min(allowed, max(happened, 0) + EVENTS_AHEAD) / PRODUCERS)
            if written != before:
                before, stuck = written, time.monotonic() + STUCK_SECONDS
                self._progress(f"{written:,} of {self.events:,} events, {len(waiting)} faults left")
            share = 1.0 if not self.crew.producing else written / self.events
            if waiting and share >= waiting[0].at:
                nemesis.send(waiting.pop(0))
                sent += 1
            elif time.monotonic() > stuck and nemesis.done == sent:
                self.history.note("violation", text="T9 producers make no progress")
                return
            else:
                time.sleep(0.1)

    def _progress_made(self):
        """Return how many events are written and how many effects there are; -1, -1 if away."""
        try:
            self._looker = self._looker or open_world(self.ground.store_url)
            return self._looker.written(), self._looker.effects_written()
        except Exception:
            self._look_away()
            return -1, -1

    def _look_away(self):
        looker, self._looker = self._looker, None
        if looker is not None:
            with suppress(Exception):
                looker.close()

    def _drain(self):
        """Wait until nothing is left and everything took effect (T9)."""
        self._look_away()
        patience = DRAIN_SECONDS[self.ground.tap.kind]
        left, least, deadline = {}, float("inf"), time.monotonic() + patience
        while time.monotonic() < deadline:
            try:
                left = self._left()
                if not (total := sum(left.values())):
                    return []
                if total < least:
                    least, deadline = total, time.monotonic() + patience
            except Exception as error:
                left = {"error": str(error)}
            self._progress(f"draining: {left}")
            self.history.note("draining", left=left)
            time.sleep(0.3)
        return [f"T9 no progress for {patience} s after healing: {left}"]

    def _left(self):
        found = asyncio.run(counts(self.ground.store_url))
        left = {state: found[state] for state in ("pending", "processing", "failed")}
        left["operations"] = asyncio.run(unfinished(self.ground.store_url))
        world = open_world(self.ground.store_url)
        try:
            left["without effect"] = world.innocent() - world.happened() - found["cancelled"]
            met = set(world.met())
        finally:
            world.close()
        if not any(left.values()):
            met |= set(asyncio.run(dead_letters(self.ground.store_url))[2])
            sent = found_in(read(self.folder, "foreign.jsonl")).values()
            left["foreign"] = sum(one.number not in met for one in sent if one.end != "maybe")
        return left

    # -- afterwards ---------------------------------------------------------------------------
    def _used(self):
        """Compare what the old processes hold with what a fresh one does (T10)."""
        found, self.memory = [], 0
        fresh = {kind: self.crew.start(kind) for kind in self.crew.places}
        deadline = time.monotonic() + START_SECONDS
        while not all(map(self.crew.has_started, fresh.values())):
            if time.monotonic() > deadline:
                return [f"T9 {list(fresh)} do not start"]
            time.sleep(0.1)
        time.sleep(3 * LEASE)
        for kind, newest in fresh.items():
            few, small = handles(newest.process.pid), megabytes(newest.process.pid)
            for member in self.crew.alive(kind):
                held, size = handles(member.process.pid), megabytes(member.process.pid)
                self.memory = max(self.memory, size)
                if held > few + MORE_HANDLES:
                    found.append(f"T10 {member.name} holds {held} handles, a fresh one {few}")
                if size > small + MORE_MEGABYTES:
                    found.append(f"T10 {member.name} uses {size} MB, a fresh one {small} MB")
        return found

    def _left_open(self):
        """When all have gone, so have their connections (T10)."""
        deadline = time.monotonic() + CLOSE_SECONDS
        world = open_world(self.ground.store_url)
        try:
            while others := world.strangers():
                if time.monotonic() > deadline:
                    return [f"T10 the store still has {others} connections"]
                time.sleep(0.2)
        finally:
            world.close()
        return []

    def _judge(self):
        world = open_world(self.ground.store_url)
        try:
            committed, effects, met = world.committed(), world.effects(), world.met()
            arrivals = self.ground.tap.arrivals()
            if self._change_tap is None:
                leases, settled = world.leases(), world.settled()
            else:
                leases, settled = self._change_tap.end()
        finally:
            world.close()
        cancelled, replaced, nowhere, undone = asyncio.run(operated(self.ground.store_url))
        dead, buried, foreign_dead = asyncio.run(dead_letters(self.ground.store_url, replaced))
        histories = read(self.folder)
        by_handlers = self.ground.tap.kind == "handlers"
        foreign = found_in(histories)
        copies = len(arrivals) - len({event_id for event_id, *_ in arrivals})
        self.figures = {
            "events": len(committed), "effects": len(effects), "dead": len(dead) + len(buried),
            "copies": copies, "takes": len(leases), "memory_mb": self.memory,
            "fenced": sum(line.get("events", 0) for line in histories if line["what"] == "fenced"),
            "doomed": sum(line["what"] == "doomed" for line in histories),
            "foreign": len(foreign), "foreign dead": len(foreign_dead),
            "mischief": sum(fate in MISCHIEF for *_, fate in committed.values()),
            "unknown commits": sum(line["what"] == "unknown" for line in histories),
            "cancelled": len(cancelled), "edited": len(replaced),
            "operations": sum(line["what"] == "replaying" for line in histories),
        }  # fmt: skip
        evidence = Evidence(
            committed, arrivals, effects, dead, buried, leases, settled, histories, by_handlers,
            tuple(filter(is_strict, KEYS)), guilty_of(Url.parse(self.ground.store_url).scheme),
            foreign, met, foreign_dead, cancelled, replaced, nowhere, undone,
        )  # fmt: skip
        # For whoever looks into a violation, when the servers are gone.
        seen = {**evidence._asdict(), "histories": []}
        (self.folder / "evidence.json").write_text(json.dumps(seen))
        found = check(evidence)
        self.story = excerpt(evidence, found)
        return found

    def _secrets(self):
        """Look for passwords in all logs and histories (T11)."""
        return [
            f"T11 the secret is in {path.name}"
            for path in self.folder.iterdir()
            if SECRET in path.read_text(errors="replace")
        ]


def report(summary, into=None):
    """Print one line of JSON, and append it to a file if one is given; True if all is well."""
    line = json.dumps(summary)
    print(line, flush=True)
    if into is not None:
        with into.open("a") as file:
            file.write(line + "\n")
    for told in (*summary["violations"], *summary.get("story", ())):
        print(told, file=sys.stderr)
    return not summary["violations"]
