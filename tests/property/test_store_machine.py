"""The memory store and the SQLite store, step by step beside a model of what must be true.

Two relays and a person do anything that the engine could do, in any order. After each step both
stores must show what the model says, and the same stages and blocks as each other. At the end one
relay must be able to bring everything to its end, each key in its order.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from postroom.record import key_hash, lane_of
from postroom.store import Member, ReadRequest
from postroom.testing.store.tools import Hand
from tests.property.profile import tries
from tests.property.two_stores import KEYS, LANES, LEASE, SHARED, Hands, TwoStores

# Anna does most: what one relay has begun goes on more often.
OWNERS = st.sampled_from(["anna", "anna", "anna", "bert"])


class StoreMachine(TwoStores, RuleBasedStateMachine):
    @invariant()
    def both_stores_show_what_must_be_true(self):
        shown = {}
        for which, found in self.look().items():
            named = {self.names[which][real]: row for real, row in found.items()}
            assert list(named) == self.model.in_order()
            for name, (stage, state, attempts) in named.items():
                entry = self.model.entries[name]
                assert (state, attempts) == (entry.state, entry.attempts), name
                assert (stage == "over") == (not entry.is_unfinished), name
            shown[which] = {name: row[0] for name, row in named.items()}
        assert shown["memory"] == shown["sqlite"]  # stages
        blocks = self.blocks()
        assert blocks["memory"] == blocks["sqlite"]
        leases = self.both(lambda store: self.seen_leases(store))
        now = self.model.now
        assert leases == {
            n: (h.owner, h.token, h.owner is not None and h.until > now)
            for n, h in self.model.leases.items()
        }

    # -- writers ------------------------------------------------------------------------------
    @initialize(keys=st.sampled_from([KEYS[:1], KEYS[:1], KEYS]))
    def the_lanes_are_there(self, keys):
        """Often all events are of one key: more happens to it then."""
        self.keys = keys
        for store in self.stores.values():
            self.run(store.heartbeat("main", Member("anna", True), LEASE, {}))

    @rule(keys=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def add(self, keys):
        events = self.events(keys, self.keys)
        self.run(self.write(events, commit=True))
        for event in events:
            hashed = key_hash(None, event.key, event.id)
            self.model.add(event.id, event.key, lane_of(hashed))
            for named in self.names.values():
                named[event.id] = event.id

    @rule(keys=st.lists(st.integers(0, 2), min_size=1, max_size=2))
    def roll_back(self, keys):
        self.run(self.write(self.events(keys, self.keys), commit=False))

    # -- lanes --------------------------------------------------------------------------------
    @rule(owner=OWNERS, lanes=st.sampled_from([LANES, (SHARED,)]))
    def take(self, owner, lanes):
        taken = self.both(lambda store: store.take("main", owner, lanes, LEASE))
        assert taken == self.model.take(owner, lanes, LEASE)
        self.forget_lost(owner)  # a lane that is taken afresh begins with nothing in flight
        self.hands[owner].held |= taken
        if taken:  # a relay that takes a lane mends it
            self.both(lambda store: store.repair_blocks("main", owner, taken, 100))
        self.forget_lost(owner)

    @rule(owner=OWNERS)
    def beat(self, owner):
        held = dict(self.hands[owner].held)
        for store in self.stores.values():
            self.run(store.heartbeat("main", Member(owner, True), LEASE, held))
        self.model.renew(owner, held, LEASE)
        self.forget_lost(owner)

    @rule(owner=OWNERS)
    def retake(self, owner):
        held = dict(self.hands[owner].held)
        tokens = self.both(lambda store: store.retake("main", owner, held, LEASE))
        assert tokens == self.model.retake(owner, held, LEASE)
        self.hands[owner].held = tokens
        self.forget_lost(owner)

    @rule(owner=OWNERS)
    def release(self, owner):
        hands = self.hands[owner]
        busy = {self.lane_of_key(key) for key in hands.runs}
        held = {lane: token for lane, token in hands.held.items() if lane not in busy}
        for store in self.stores.values():
            self.run(store.release("main", owner, held))
        self.model.release(owner, held)
        hands.held = {lane: token for lane, token in hands.held.items() if lane in busy}
        self.forget_lost(owner)

    @rule(seconds=st.sampled_from([1, 11, 11]))
    def time_passes(self, seconds):
        self.model.now += seconds

    def lane_of_key(self, key):
        return lane_of(key_hash(None, key, ""))

    def forget_lost(self, owner):
        """A relay that learns of a loss drops what it has in flight there. It may learn late."""
        hands = self.hands[owner]
        lost = [n for n in LANES if n not in self.model.owned(owner, hands.held)]
        hands.held = {n: t for n, t in hands.held.items() if n not in lost}
        hands.runs = {k: run for k, run in hands.runs.items() if self.lane_of_key(k) not in lost}
        hands.parked = [
            n
            for n in hands.parked
            if n in self.model.entries and self.model.entries[n].lane not in lost
        ]

    # -- events -------------------------------------------------------------------------------
    @rule(owner=OWNERS)
    def read(self, owner):
        hands = self.hands[owner]
        busy = [key_hash(None, key, "") for key in hands.runs]
        question = ReadRequest("main", LANES, 100, 100, 10**9, busy, owner, dict(hands.held))
        answers = {}
        for which, store in self.stores.items():
            answers[which] = []
            for record in self.run(store.read(question)):
                name = self.names[which][record.id]
                may_go = record.barrier is None or record.seq <= record.barrier
                hands.records[which, name] = record
                answers[which].append((name, may_go, record.state, record.attempts))
        assert answers["memory"] == answers["sqlite"]
        found = answers["memory"]
        owned = self.model.owned(owner, hands.held)
        for name, _, _, _ in found:
            assert self.model.is_open(name)
            assert self.model.entries[name].lane in owned
            assert self.model.entries[name].key not in hands.runs
        for key in {self.model.entries[name].key for name, _, _, _ in found}:
            going = [n for n, may_go, _, _ in found if may_go and self.model.entries[n].key == key]
            # G4: what may go now are the lowest unfinished events of the key, and no others.
            assert going == self.model.unfinished(key)[: len(going)]
            if going:
                hands.runs[key] = going
        hands.parked += [n for n, may_go, _, _ in found if not may_go and n not in hands.parked]

    def lands(self, name, held):
        return self.model.is_open(name) and self.model.entries[name].lane in held

    @precondition(lambda self: any(hands.runs for hands in self.hands.values()))
    @rule(
        owner=OWNERS,
        data=st.data(),
        keep=st.booleans(),
        repeat=st.booleans(),
        delay=st.sampled_from([1, 60]),
    )
    def finish(self, owner, data, keep, repeat, delay):
        self.finish_what_is_in_flight(owner, data, keep=keep, repeat=repeat, delay=delay)

    def finish_what_is_in_flight(self, owner, data, *, keep=True, repeat=False, delay=1):
        """Some events of each key were confirmed; the next one failed, was given up, or neither."""
        hands = self.hands[owner]
        done, failed, dead = [], [], []
        for _, run in sorted(hands.runs.items()):
            confirmed = min(data.draw(st.integers(0, 3), label=f"confirmed of {run}"), len(run))
            done += run[:confirmed]
            if confirmed < len(run):
                end = data.draw(st.sampled_from([[], failed, dead]))
                end.append(run[confirmed])
        outcomes = {"done": done, "failed": failed, "dead": dead, "parked": hands.parked}
        held = self.settle(owner, keep_done=keep, repeat=repeat, delay=delay, **outcomes)
        for name in done:
            if self.lands(name, held):
                self.model.ends(name, "done")
                if not keep:
                    self.gone(name)
        for names, state in ((failed, "failed"), (dead, "dead")):
            for name in names:
                if self.lands(name, held):
                    self.model.ends(name, state, hands.records["memory", name].attempts + 1)
        hands.runs, hands.parked = {}, []
        self.forget_lost(owner)

    @precondition(lambda self: any(hands.runs for hands in self.hands.values()))
    @rule(owner=OWNERS, repeat=st.booleans())
    def begin(self, owner, repeat):
        """The handlers of the first events of all runs start; their attempts are counted."""
        hands = self.hands[owner]
        heads = [run[0] for run in hands.runs.values()]
        held = self.settle(owner, repeat=repeat, starts=heads)
        for name in heads:
            if self.lands(name, held):
                entry = self.model.entries[name]
                entry.state = "processing"
                entry.attempts = max(entry.attempts, hands.records["memory", name].attempts + 1)

    @precondition(lambda self: any(hands.runs for hands in self.hands.values()))
    @rule(owner=OWNERS, repeat=st.booleans())
    def give_back(self, owner, repeat):
        """What was started never ran: pending again, and the attempt is given back."""
        hands = self.hands[owner]
        heads = [run[0] for run in hands.runs.values()]
        held = self.settle(owner, repeat=repeat, returned=heads)
        for name in heads:
            entry = self.model.entries.get(name)
            if self.lands(name, held) and entry.state == "processing":
                entry.state, entry.attempts = "pending", max(entry.attempts - 1, 0)

    @rule(owner=OWNERS)
    def turn(self, owner):
        """What a relay does again and again, at one go: so a run gets further in its steps."""
        self.model.now += 4
        self.beat(owner)
        self.take(owner, LANES)
        self.stage()
        self.read(owner)

    @rule(owner=OWNERS, data=st.data(), delay=st.sampled_from([1, 60]))
    def work(self, owner, data, delay):
        self.turn(owner)
        self.finish_what_is_in_flight(owner, data, delay=delay)

    @rule()
    def stage(self):
        self.both(lambda store: store.stage("main", LANES, 100))

    @rule(seconds=st.sampled_from([0, 5]))
    def prune(self, seconds):
        old = self.model.prune(seconds)
        assert self.both(lambda store: store.prune(seconds, 100)) == len(old)
        for name in old:
            self.forget_name(name)

    # -- people -------------------------------------------------------------------------------
    def some(self, data, *, unfinished):
        """Choose a few events, finished or not."""
        names = [n for n in self.model.in_order() if self.model.is_open(n) == unfinished]
        if not names:
            return []
        return data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))

    def order(self, names, call, *, deposes=True):
        """Have a person do something to these events in both stores."""
        for which, store in self.stores.items():
            assert self.run(call(store, self.ids(which, names))) == len(names)
        if deposes:
            self.model.depose(names)

    @rule(data=st.data())
    def bury(self, data):
        if names := self.some(data, unfinished=True):
            self.order(names, lambda store, ids: store.bury(ids, "no use"))
            for name in names:
                self.model.ends(name, "dead")

    @rule(data=st.data())
    def replay(self, data):
        if names := self.some(data, unfinished=False):
            self.order(names, lambda store, ids: store.replay(ids), deposes=False)
            for name in names:
                self.model.replay(name)

    @rule(data=st.data())
    def replay_under_a_new_id(self, data):
        if names := self.some(data, unfinished=False)[:1]:
            self.order(names, lambda store, ids: store.replay(ids, new_id=True), deposes=False)
            self.count += 1
            original, copy = self.model.entries[names[0]], f"copy {self.count}"
            self.model.add(copy, original.key, original.lane)
            self.adopt(copy)

    @rule(data=st.data())
    def skip(self, data):
        if names := self.some(data, unfinished=True)[:1]:
            for which, store in self.stores.items():
                self.run(store.skip(*self.ids(which, names), "no use"))
            self.model.depose(names)
            self.count += 1
            self.model.skip(names[0], f"marker {self.count}")
            self.adopt(f"marker {self.count}")

    # -- the end ------------------------------------------------------------------------------
    def teardown(self):
        try:
            self.everything_comes_to_its_end()
        finally:
            self.close()

    def everything_comes_to_its_end(self):
        """G2: one relay that meets no fault delivers what is left, each key in its order."""
        self.model.now += 2 * LEASE
        self.hands["carl"] = Hands()
        self.take("carl", LANES)
        delivered = []
        for _ in range(100):
            if not any(map(self.model.is_open, self.model.entries)):
                break
            self.model.now += LEASE // 2
            self.beat("carl")
            self.stage()
            self.read("carl")
            hands = self.hands["carl"]
            done = [name for run in hands.runs.values() for name in run]
            held = self.settle("carl", done=done, parked=hands.parked)
            assert held == set(LANES)
            for name in done:
                self.model.ends(name, "done")
            delivered += done
            hands.runs, hands.parked = {}, []
            self.both_stores_show_what_must_be_true()
        for key in KEYS:
            assert self.model.unfinished(key) == []
            of_key = [n for n in delivered if self.model.entries[n].key == key]
            assert of_key == sorted(of_key, key=lambda n: self.model.entries[n].place)


StoreMachine.TestCase.settings = tries(80, steps=30)


@pytest.mark.slow
@pytest.mark.promise("G2", "G4", "G5", "G7", "L1", "L2", "L5", "L7", "B1", "B3", "R1")
class TestStores(StoreMachine.TestCase):
    """Both stores, side by side."""


@pytest.mark.promise("G4", "B1")
def test_a_replayed_event_that_fails_does_not_let_its_key_pass_the_one_that_waits():
    """The second has failed and waits; the first, a dead letter, is replayed and fails, too."""

    async def play(store):
        anna = await Hand(store).take()
        await anna.bury(await anna.only("e1"))
        await anna.fail(await anna.only("e2"), delay=3_600.0)
        assert await anna.work() == []
        await store.replay(["e1"])
        await anna.fail(await anna.only("e1"))
        return [await anna.work() for _ in range(3)]

    stores = TwoStores()
    try:
        stores.run(stores.write(stores.events([0, 1, 2], KEYS[:1]), commit=True))
        assert stores.both(play) == [["e1"], ["e2"], ["e3"]]
    finally:
        stores.close()
