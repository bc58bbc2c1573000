"""A peer in a race: its outbox is filled once, and copied for every round."""

import json
import subprocess
from pathlib import Path

import psycopg

from bench.peers.environment import environment, pinned
from bench.rounds import Contest, say

ROOT = Path(__file__).parents[2]
TRIAL_EVENTS = 500
TRIAL_SECONDS = 2
PATIENCE_SECONDS = 600


class RacerError(Exception):
    """A peer's script ended with an error, or not at all."""


class Racer:
    """One peer on a PostgreSQL: events are added by the peer's own API, in its own tables.

    A round begins with a fresh copy of that database. The peer starts up and imports unmeasured;
    the clock runs from the opening of its connections to its last publish.
    """

    def __init__(self, peer, server_url, events, keys, seconds, kafka=None):
        self.peer = peer
        self._kafka = kafka
        self.name = f"{peer.package} {pinned(peer.package)}"
        self._python = environment(peer)
        self._server_url = server_url
        base = server_url.rpartition("/")[0]
        self._most = events
        self._full = f"bench_{peer.script}"
        self._round_url = f"{base}/{self._full}_round"
        self._run(f"DROP DATABASE IF EXISTS {self._full} WITH (FORCE)")
        self._run(f"CREATE DATABASE {self._full}")
        say(f"{self.name}: adding {events:,} events by its own API")
        self._script("fill", f"{base}/{self._full}", events, keys)
        with psycopg.connect(f"{base}/{self._full}", autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        self.late, self.memory_mb, self.broken = 0, 0.0, ""
        self.settings, rate = self._best()
        self.late = 0
        # A slow one gets fewer events to deliver, out of the same backlog.
        self.events = min(events, max(TRIAL_EVENTS, int(rate * seconds)))

    def contest(self):
        return Contest(self.name, self._round, self._copy)

    def _round(self):
        """One that breaks down is out of the race; it does not end it for the others."""
        if self.broken:
            return 0.0
        try:
            return self._drain()
        except RacerError as error:
            say(str(error))
            self.broken = str(error).splitlines()[0]
            return 0.0

    def _best(self):
        """Try all settings twice: shortly, and then for as long as tells something."""
        count = min(TRIAL_EVENTS, self._most)
        first = max(self._try(count))
        rates = self._try(int(max(count, min(self._most, first * TRIAL_SECONDS))))
        rate = max(rates)
        return self.peer.settings[rates.index(rate)], rate

    def _try(self, count):
        rates = []
        for settings in self.peer.settings:
            self.settings, self.events = settings, count
            self._copy()
            rates.append(self._drain())
            words = json.dumps(settings)
            say(f"{self.name}: {words}, {count:,} events: {rates[-1]:,.0f}/s")
        return rates

    def _copy(self):
        self._run(f"DROP DATABASE IF EXISTS {self._full}_round WITH (FORCE)")
        self._run(f"CREATE DATABASE {self._full}_round TEMPLATE {self._full}")
        self._run("CHECKPOINT")

    def _drain(self):
        words = [self._round_url, self.events, json.dumps(self.settings)]
        words += [self._kafka] if self._kafka else []
        found = json.loads(self._script("drain", *words).splitlines()[-1])
        self.late += found["late"]
        self.memory_mb = max(self.memory_mb, found["memory_mb"])
        return self.events / found["seconds"]

    def _script(self, *words):
        module = f"bench.peers.scripts.{self.peer.script}"
        try:
            done = subprocess.run(
                [self._python, "-m", module, *map(str, words)], input="go\n", text=True,
                capture_output=True, cwd=ROOT, check=True, timeout=PATIENCE_SECONDS,
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            last = error.stderr.strip().splitlines()[-1:]
            reason = f"{self.name} ended with {error.returncode}: {''.join(last)}"
            raise RacerError(f"{reason}\n{error.stderr[-2000:]}") from error
        except subprocess.TimeoutExpired as error:
            raise RacerError(f"{self.name} took more than {PATIENCE_SECONDS} s") from error
        return done.stdout

    def _run(self, sql):
        with psycopg.connect(self._server_url, autocommit=True) as connection:
            connection.execute(sql)

    def note(self):
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        late = f"; {self.late} events out of order" if self.late else ""
        return (
            f"{self.peer.order}; {self.peer.batch}; best of its settings: {settings}; "
            f"{self.events:,} events, {self.memory_mb:.0f} MB{late}"
        )
