"""The processes of a run: producers, relays, consumers, and what each of them uses of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

END_SECONDS = 30
START_BYTES = 20_000


@dataclass(eq=False)
class Member:
    """A relay or a consumer."""

    name: str
    process: subprocess.Popen


class Crew:
    """Relays and consumers that can be started, picked and forgotten; producers to wait for.

    `places` says what each kind of process is told: {"relay": (store, broker), "consumer": …}. In
    an address, `{name}` stands for the process' own name.
    """

    def __init__(self, folder, places, store_url, *, lease, mode="direct"):
        self.store_url = store_url
        self.folder, self.places, self.lease, self.mode = folder, places, lease, mode
        self.producers = []
        self.gate = folder / "gate"
        self.allow(0)
        self._members = {kind: [] for kind in places}
        self._started = dict.fromkeys(places, 0)
        self._fallen = []
        self._lock = threading.RLock()

    # -- relays and consumers -----------------------------------------------------------------
    def alive(self, kind):
        with self._lock:
            members, self._members[kind] = self._members[kind], []
            for member in members:
                ended = member.process.poll() is not None
                (self._fallen if ended else self._members[kind]).append(member)
            return list(self._members[kind])

    @property
    def fallen(self):
        """Those who ended although nobody had asked them to."""
        for kind in self.places:
            self.alive(kind)
        return [f"{member.name} broke: exit {member.process.poll()}" for member in self._fallen]

    def start(self, kind, *more):
        with self._lock:
            self._started[kind] += 1
            name = f"{kind}-{self._started[kind]}"
            told = [address.replace("{name}", name) for address in self.places[kind]]
            command = [
                *self._verb(kind), *told, str(self._history(name)),
                "--name", name, "--lease", str(self.lease), *self._more(kind), *more,
            ]  # fmt: skip
            environment = {
                "POSTROOM_TORTURE_SCHEME": self.places["relay"][0].partition(":")[0],
                "POSTROOM_TORTURE_STORE": self.store_url,
            }
            member = Member(name, self._spawn(name, command, environment))
            self._members[kind].append(member)
            return member

    def _more(self, kind):
        return ("--mode", self.mode) if kind == "consumer" else ()

    def keep(self, kind, wanted):
        with self._lock:
            while len(self.alive(kind)) < wanted:
                self.start(kind)

    def pick(self, kind, size, *, at_work=False):
        """Choose one; `at_work`: one who has had something to do, if there is one."""
        with self._lock:
            self.keep(kind, 1)
            members = self.alive(kind)
            if at_work:
                members = [one for one in members if self._is_at_work(one)] or members
            return members[int(size * 1000) % len(members)]

    def has_started(self, member):
        """It has noted that it is up: on a busy machine that may take a while."""
        with suppress(OSError):
            return bool(self._history(member.name).read_text())
        return False

    def _is_at_work(self, member):
        """It has noted lanes, or messages."""
        with suppress(OSError), self._history(member.name).open() as file:
            begin = file.read(START_BYTES)
            return '"taken"' in begin or '"got"' in begin
        return False

    def forget(self, member):
        with self._lock:
            for kind, members in self._members.items():
                self._members[kind] = [other for other in members if other is not member]

    # -- producers ----------------------------------------------------------------------------
    def produce(self, url, *, count, events, seed, keys, oversize):
        for n in range(count):
            name = f"producer-{n + 1}"
            command = [
                *self._verb("produce"), url, str(self._history(name)), "--name", name,
                "--seed", str(seed * 100 + n), "--events", str(ceil(events / count)),
                "--keys", str(keys), "--oversize", str(oversize), "--gate", str(self.gate),
            ]  # fmt: skip
            self.producers.append(self._spawn(name, command))

    def send_foreign(self, store, broker, *, count, events, seed):
        """Let others send and write, at the pace of producers that write so many events each."""
        command = [
            *self._verb("foreign"), store, broker, str(self._history("foreign")),
            "--name", "foreign", "--seed", str(seed), "--count", str(count),
            "--events", str(events), "--gate", str(self.gate),
        ]  # fmt: skip
        self.producers.append(self._spawn("foreign", command))

    def allow(self, each):
        """Let every producer have written so many events by now."""
        new = self.gate.with_suffix(".new")
        new.write_text(str(int(each)))
        new.replace(self.gate)

    @property
    def producing(self):
        return any(producer.poll() is None for producer in self.producers)

    @property
    def failed_producers(self):
        return [producer.returncode for producer in self.producers if producer.returncode]

    # -- all ----------------------------------------------------------------------------------
    def end(self):
        members = [member.process for kind in self.places for member in self.alive(kind)]
        processes = [*members, *self.producers]
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _verb(self, name):
        return [sys.executable, "-m", "tests.torture", name]

    def _history(self, name):
        return self.folder / f"{name}.jsonl"

    def _spawn(self, name, command, environment=None):
        with (self.folder / f"{name}.log").open("a") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **(environment or {})}
            )


def handles(pid):
    """How many files and sockets a process has open."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def megabytes(pid):
    """How much memory of a process is resident."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 1_000_000
