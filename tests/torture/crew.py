"""The processes of a run: producers, relays, and what each of them uses of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

END_SECONDS = 30


@dataclass(eq=False)
class Relay:
    name: str
    process: subprocess.Popen
    began: float = field(default_factory=time.monotonic)


class Crew:
    """Relays that can be started, picked and forgotten; producers that are waited for."""

    def __init__(self, folder, *, store, broker, lease):
        self.folder = folder
        self.store, self.broker, self.lease = store, broker, lease
        self._relays = []
        self._started = 0
        self.producers = []

    # -- relays -------------------------------------------------------------------------------
    @property
    def alive(self):
        self._relays = [relay for relay in self._relays if relay.process.poll() is None]
        return self._relays

    def start(self, clock=None):
        self._started += 1
        name = f"relay-{self._started}"
        command = [
            *self._verb("relay"), self.store, self.broker, str(self._history(name)),
            "--name", name, "--lease", str(self.lease),
        ]  # fmt: skip
        environment = {}
        if clock is not None:
            command = [shutil.which("faketime") or "faketime", "-f", clock, *command]
            environment = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
        self._relays.append(Relay(name, self._spawn(name, command, environment)))

    def keep(self, wanted):
        while len(self.alive) < wanted:
            self.start()

    def pick(self, size):
        self.keep(1)
        return self.alive[int(size * 1000) % len(self.alive)]

    def forget(self, relay):
        self._relays = [other for other in self._relays if other is not relay]

    # -- producers ----------------------------------------------------------------------------
    def produce(self, url, *, count, events, seed, keys, poison_size):
        for n in range(count):
            name = f"producer-{n + 1}"
            command = [
                *self._verb("produce"), url, str(self._history(name)), "--name", name,
                "--seed", str(seed * 100 + n), "--events", str(events // count),
                "--keys", str(keys),
                *(() if poison_size is None else ("--poison-size", str(poison_size))),
            ]  # fmt: skip
            self.producers.append(self._spawn(name, command))

    @property
    def producing(self):
        return any(producer.poll() is None for producer in self.producers)

    @property
    def failed_producers(self):
        return [producer.returncode for producer in self.producers if producer.returncode]

    # -- all ----------------------------------------------------------------------------------
    def end(self):
        processes = [*(relay.process for relay in self.alive), *self.producers]
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
        environment = {**os.environ, "POSTROOM_TORTURE_STORE": self.store, **(environment or {})}
        with (self.folder / f"{name}.log").open("a") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


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
