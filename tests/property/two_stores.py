"""A memory store and an SQLite store side by side, with a model of what must be true of both."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox
from postroom.settlement import DeadOutcome, FailedOutcome, Settlement
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing.store.tools import keys_of_lane
from tests.property.outbox_model import Model

SHARED, OTHER = 5, 9  # two keys share a lane, the third has one of its own
KEYS = (*keys_of_lane(SHARED, 2), *keys_of_lane(OTHER, 1))
LANES = (SHARED, OTHER)
LEASE = 10
START = 1_000_000_000


@cache
def template():
    """A file with the tables: made once, and copied for each example."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "template.db")
        asyncio.run(SqliteStore(path).migrate())
        return path.read_bytes()


class Hands:
    """What one relay remembers: tokens, runs in flight by key, followers to be parked."""

    def __init__(self):
        self.held: dict[int, int] = {}
        self.runs: dict[str, list[str]] = {}
        self.parked: list[str] = []
        self.records: dict[tuple[str, str], object] = {}


class TwoStores:
    """Both stores on one clock, asked and changed together. Events have names: ids may differ."""

    def __init__(self):
        super().__init__()
        self.folder = TemporaryDirectory()
        path = Path(self.folder.name, "outbox.db")
        path.write_bytes(template())
        self.patches = [
            patch("postroom.stores.sqlite.thread.host_microseconds", self.clock),
            patch("postroom.stores.sqlite.stage.host_microseconds", self.clock),
            patch("postroom.stores.sqlite.prune.host_microseconds", self.clock),
            # One follower at a time, so that a few events are a long queue.
            patch("postroom.stores.sqlite.blocks.ADVANCE_STEP", 1),
            patch("postroom.stores.memory.tables.ADVANCE_STEP", 1),
        ]
        for each in self.patches:
            each.start()
        self.runner = asyncio.Runner()
        self.memory, self.sqlite = MemoryStore(self.clock), SqliteStore(path)
        self.stores = {"memory": self.memory, "sqlite": self.sqlite}
        self.run(self.sqlite.open())
        self.writer = sqlite3.connect(path, isolation_level=None)
        self.model = Model(LANES)
        self.names: dict[str, dict[str, str]] = {"memory": {}, "sqlite": {}}  # id → name
        self.hands = {"anna": Hands(), "bert": Hands()}
        self.count = 0

    def clock(self):
        return (START + self.model.now) * 1_000_000 if hasattr(self, "model") else START * 1_000_000

    def run(self, call):
        return self.runner.run(call)

    def both(self, ask):
        """Ask both stores the same; their answers must be equal."""
        first, second = (self.run(ask(store)) for store in self.stores.values())
        assert first == second
        return first

    def ids(self, which, names):
        of_name = {name: real for real, name in self.names[which].items()}
        return [of_name[name] for name in names]

    def adopt(self, name):
        """A store has made an event of its own: call it by this name in both."""
        for which, found in self.look().items():
            [new] = [real for real in found if real not in self.names[which]]
            self.names[which][new] = name

    # -- looking ------------------------------------------------------------------------------
    def look(self):
        rows = self.writer.execute(
            "SELECT id, stage, state, attempts FROM postroom_outbox ORDER BY seq"
        ).fetchall()
        memory = [s for _, s in sorted(self.memory.data.rows.items())]
        return {
            "memory": {s.row.id: (str(s.stage), str(s.state), s.attempts) for s in memory},
            "sqlite": {real: tuple(rest) for real, *rest in rows},
        }

    def blocks(self):
        """Return the event at the barrier of each blocked key."""
        ids = dict(self.writer.execute("SELECT seq, id FROM postroom_outbox"))
        rows = self.writer.execute("SELECT key_hash, barrier FROM postroom_block")
        tables = self.memory.data
        return {
            "memory": {
                hashed: self.names["memory"].get(tables.rows[b.barrier].row.id)
                if b.barrier in tables.rows
                else None
                for (_, hashed), b in tables.blocks.items()
            },
            "sqlite": {h: self.names["sqlite"].get(ids.get(barrier, "")) for h, barrier in rows},
        }

    async def seen_leases(self, store):
        membership = await store.leases("main")
        return {x.lane: (x.owner, x.token, x.live) for x in membership.leases if x.lane in LANES}

    # -- changing -----------------------------------------------------------------------------
    def events(self, numbers, keys):
        """Make an event for each number, of one of these keys."""
        made = []
        for number in numbers:
            self.count += 1
            key = keys[number % len(keys)]
            made.append(Event("tested", {}, id=f"e{self.count}", key=key))
        return made

    async def write(self, events, *, commit):
        tx = self.memory.begin()
        await Outbox().add_many(tx, events)
        await (tx.commit() if commit else tx.rollback())
        self.writer.execute("BEGIN IMMEDIATE")
        SyncOutbox().add_many(self.writer, events)
        self.writer.execute("COMMIT" if commit else "ROLLBACK")

    def settle(self, owner, *, repeat=False, delay=1, **names):
        """Settle by name in both stores; returns the lanes that were held."""
        hands = self.hands[owner]
        failed, dead = names.pop("failed", []), names.pop("dead", [])
        keep_done = names.pop("keep_done", True)
        held = self.model.fence(owner, hands.held)
        for which, store in self.stores.items():

            def records(wanted, which=which):
                return [hands.records[which, name] for name in wanted]

            settlement = Settlement(
                "main", owner, LEASE, dict(hands.held), keep_done,
                failed=[FailedOutcome(r, r.attempts + 1, delay, "boom") for r in records(failed)],
                dead=[DeadOutcome(r, r.attempts + 1, "boom") for r in records(dead)],
                **{what: records(wanted) for what, wanted in names.items()},
            )  # fmt: skip
            assert self.run(store.settle(settlement)) == held
            if repeat:  # the reply was lost, and nothing more may change (L5)
                before = self.look()[which], self.blocks()[which]
                assert self.run(store.settle(settlement)) == held
                assert (self.look()[which], self.blocks()[which]) == before
        return held

    def gone(self, name):
        del self.model.entries[name]
        self.forget_name(name)

    def forget_name(self, name):
        for named in self.names.values():
            for real in [real for real, known in named.items() if known == name]:
                del named[real]

    def close(self):
        self.writer.close()
        self.run(self.sqlite.close())
        self.runner.close()
        for each in self.patches:
            each.stop()
        self.folder.cleanup()
