"""A producer: writes orders of trouble and says in its history what became of each transaction.

Of its transactions 15 % are rolled back, 5 % sleep before they commit, in 2 % the process dies. A
commit whose reply is lost is unknown; it is looked up by id when the database is back. How many
events it may have written by now stands in a file, so that there is traffic while faults last.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from uuid import UUID

from postroom import SyncOutbox
from tests.torture.history import History
from tests.torture.worlds import MISCHIEF, is_strict, open_world, padding_of

ROLLS_BACK, SLEEPS, DIES = 0.15, 0.20, 0.22
PADDINGS = (100, 100, 100, 100, 100, 300, 1_000, 3_000, 10_000)
BIG, BIG_SHARE = 200_000, 0.002
FATE_SHARE = 0.002  # of each fate
MISCHIEF_SHARE = 0.02  # of all kinds of mischief together


class RollBackError(Exception):
    pass


class Producer:
    def __init__(self, url, history, *, seed, keys, oversize, gate):
        self.url = url
        # A handler that hangs in its transaction holds the only write lock of a SQLite file.
        self.mischief = [
            fate for fate in MISCHIEF if fate != "hang" or not url.startswith("sqlite")
        ]
        self.history = history
        self.rng = random.Random(seed)
        self.keys = [f"k{n}" for n in range(keys)]
        self.shares = [1 / n for n in range(1, keys + 1)]  # Zipf
        self.oversize = oversize  # bytes that the destination refuses; 0: it takes everything
        self.gate = Gate(gate)
        self.outboxes = {False: SyncOutbox(), True: SyncOutbox(ordering="strict")}
        self.world = None
        self.unknown = []

    def run(self, events):
        made = 0
        while made < events:
            self.gate.wait(made)
            key, rows = self._draw()
            if self.unknown and not self._look_up():
                continue
            fate = self.rng.random()
            if SLEEPS <= fate < DIES:
                self._die(key, rows)
                continue
            made += self._try(key, rows, fate)
        while self.unknown and not self._look_up():
            pass

    def _draw(self):
        (key,) = self.rng.choices(self.keys, self.shares)
        rows = []
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            size = BIG if self.rng.random() < BIG_SHARE else self.rng.choice(PADDINGS)
            event_id = str(UUID(int=self.rng.getrandbits(128), version=4))
            fate = self._fate(key)
            if fate == "oversize":
                size = self.oversize
            rows.append((event_id, padding_of(event_id, size), fate))
        return key, rows

    def _fate(self, key):
        luck = self.rng.random()
        if luck < FATE_SHARE:
            return "shaky"
        if is_strict(key):  # there, one that is refused blocks its key for good
            return ""
        if luck < 2 * FATE_SHARE:
            return "poison"
        if luck < 3 * FATE_SHARE and self.oversize:
            return "oversize"
        if 3 * FATE_SHARE <= luck < 3 * FATE_SHARE + MISCHIEF_SHARE:
            return self.rng.choice(self.mischief)
        return ""

    def _try(self, key, rows, fate):
        ids = [row[0] for row in rows]
        committing = False
        try:
            self.world = self.world or open_world(self.url)
            with self.world.transaction():
                self.world.write(self.outboxes[is_strict(key)], key, rows)
                if fate < ROLLS_BACK:
                    raise RollBackError
                if fate < SLEEPS:
                    time.sleep(self.rng.uniform(0.01, 0.1))
                committing = True
                self.world.commit()
        except RollBackError:
            self.history.note("fail", ids=ids)
            return 0
        except Exception as error:
            self.history.note("unknown" if committing else "fail", ids=ids, error=str(error)[:200])
            if committing:
                self.unknown = ids
            if committing or self.world is None or not self.world.is_conflict(error):
                self._leave()
            else:  # as a client does before it repeats, or two of them get in each other's way
                time.sleep(self.rng.uniform(0.005, 0.02))
            return 0
        self.outboxes[is_strict(key)].kick()
        self.history.note("ok", ids=ids)
        return len(ids)

    def _die(self, key, rows):
        """Let a child write and die within the transaction."""
        self._leave()  # the child must not have our connection
        self.history.note("fail", ids=[row[0] for row in rows], died=True)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            with suppress(BaseException):
                world = open_world(self.url)
                with world.transaction():
                    world.write(self.outboxes[is_strict(key)], key, rows)
                    os.write(writer, world.trace())
                    os._exit(0)
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        trace = os.read(reader, 1_000)
        os.close(reader)
        if trace:
            with suppress(Exception):
                self.world = self.world or open_world(self.url)
                self.world.clear_up(trace)

    def _look_up(self):
        """Find out what became of a transaction without a reply."""
        try:
            self.world = self.world or open_world(self.url)
            known = self.world.known(self.unknown)
        except Exception:
            self._leave()
            return False
        self.history.note("looked up", ids=self.unknown, committed=len(known))
        self.unknown = []
        return True

    def _leave(self):
        world, self.world = self.world, None
        if world is not None:
            with suppress(Exception):
                world.close()
            time.sleep(0.05)


class Gate:
    """Holds a producer back until the file says that it may go on."""

    def __init__(self, path):
        self.path = path
        self.allowed = 0

    def wait(self, made):
        while made >= self.allowed:
            with suppress(OSError, ValueError):
                self.allowed = int(self.path.read_text())
            if made >= self.allowed:
                time.sleep(0.02)


def produce(url, path, *, name, seed, events, keys, oversize, gate):
    history = History(path, name)
    Producer(url, history, seed=seed, keys=keys, oversize=oversize, gate=gate).run(events)
