"""Failed events, blocked keys, dead letters, outages, doubt, and a store in trouble."""

from __future__ import annotations

import asyncio

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker
from postroom.errors import StoreError, StoreRetryableError, StoreUnknownError
from postroom.event import Event
from postroom.observer import Alarm, Attempt, BreakerChanged, StoreTrouble
from postroom.retry import Constant, RetryPolicy
from tests.scenario.place import Reach, Stop, first_seen, ids, until


def failing(*event_ids, times=10**9, verdict=Verdict.FAILED):
    """A script by which these events fail so many times each."""
    left = dict.fromkeys(event_ids, times)

    def rule(record):
        if left.get(record.id, 0) > 0:
            left[record.id] -= 1
            return Outcome(verdict, "boom")
        return None

    return rule


class Fragile(MemoryBroker):
    """One message closes the channel for all that share it; nobody learns what became of them."""

    def __init__(self, poison):
        super().__init__()
        self.poison = poison
        self.alone = []

    async def publish(self, batch, reporter):
        if any(record.id == self.poison for record in batch):
            raise ConnectionError("channel closed")
        await super().publish(batch, reporter)

    async def publish_alone(self, record, reporter):
        self.alone.append(record.id)
        if record.id == self.poison:
            raise ConnectionError("channel closed")
        await super().publish_alone(record, reporter)


class FailureScenes:
    # -- a failed head (S2.4, G4, G7) ---------------------------------------------------------
    @pytest.mark.req("S1.4", "S2.4", "S4.6")
    @pytest.mark.promise("G4", "G7", "B1")
    async def test_a_failed_head_blocks_its_key_alone_and_is_tried_again(self, place, broker):
        broken = {"k1"}
        broker.script(lambda r: Outcome(Verdict.FAILED, "boom") if r.id in broken else None)
        patient = RetryPolicy(max_attempts=10**6, backoff=Constant(0.01))
        async with place.relay(broker, retry=patient):
            await place.write(*(Event("made", id=f"k{n}", key="k") for n in (1, 2, 3)))
            await place.write(*(Event("made", id=f"other{n}", key="o") for n in (1, 2)))
            await place.write(Event("made", id="k4", key="k"))
            await until(lambda: len(ids(broker)) == 2)
            assert ids(broker) == ["other1", "other2"]

            async def tried_twice():
                record = await place.record("k1")
                return record.state == "failed" and record.attempts >= 2

            await until(tried_twice)
            await place.write(Event("made", id="k5", key="k"), Event("made", id="other3", key="o"))
            await until(lambda: "other3" in ids(broker))
            assert (await place.store.stats()).blocked_keys == 1
            broken.clear()
            await until(place.all_done)
        assert [i for i in ids(broker) if i[0] == "k"] == ["k1", "k2", "k3", "k4", "k5"]
        assert (await place.store.stats()).blocked_keys == 0

    @pytest.mark.req("S2.4", "S4.3")
    @pytest.mark.promise("G7", "B6")
    async def test_after_five_attempts_it_is_buried_and_the_key_goes_on(self, place, broker, notes):
        broker.script(failing("bad"))
        async with place.relay(broker, observers=[notes]):
            await place.write(
                Event("made", {"n": 7}, id="bad", key="k", headers={"a": "b"}),
                *(Event("made", id=f"k{n}", key="k") for n in range(3)),
            )
            await until(lambda: len(ids(broker)) == 3)
        assert ids(broker) == ["k0", "k1", "k2"]
        dead = await place.record("bad")
        assert (dead.state, dead.attempts, dead.last_error) == ("dead", 5, "boom")
        assert (dead.data, dead.headers, dead.key) == ({"n": 7}, {"a": "b"}, "k")
        tries = [(f.attempts, f.verdict) for f in notes.of(Attempt) if f.id == "bad"]
        assert tries == [(n, "failed") for n in (1, 2, 3, 4, 5)]

    @pytest.mark.req("S2.4")
    async def test_a_dead_letter_can_be_replayed(self, place, broker):
        broker.script(failing("bad"))
        await place.write(Event("made", id="bad", key="k"), Event("made", id="next", key="k"))
        async with place.relay(broker) as relay:
            await until(lambda: relay.counts.dead == 1 and ids(broker) == ["next"])
            broker.script(None)
            assert await place.store.replay(["bad"]) == 1
            await until(place.all_done)
            assert first_seen(broker) == ["next", "bad"]
            assert len(broker.messages) == 2 + relay.counts.repeated
        record = await place.record("bad")
        assert (record.state, record.attempts) == ("done", 0)

    @pytest.mark.req("S2.4")
    async def test_a_rejected_event_is_dead_at_once(self, place, broker):
        broker.script(failing("bad", verdict=Verdict.REJECTED))
        await place.write(Event("made", id="bad", key="k"), Event("made", id="next", key="k"))
        async with place.relay(broker):
            await until(lambda: ids(broker) == ["next"])
        dead = await place.record("bad")
        assert (dead.state, dead.attempts) == ("dead", 1)

    @pytest.mark.promise("B6")
    async def test_the_policy_block_tries_for_ever_and_raises_an_alarm(self, place, broker, notes):
        broken = {"bad"}
        broker.script(lambda r: Outcome(Verdict.FAILED, "boom") if r.id in broken else None)
        stubborn = RetryPolicy(max_attempts=2, backoff=Constant(0.005), on_exhausted="block")
        async with place.relay(broker, retry=stubborn, observers=[notes]):
            await place.write(Event("made", id="bad", key="k"), Event("made", id="next", key="k"))

            async def tried_often():
                return (await place.record("bad")).attempts >= 6

            await until(tried_often)
            assert ids(broker) == []
            assert "event bad blocks its key" in {fact.about for fact in notes.of(Alarm)}
            broken.clear()
            await until(place.all_done)
        assert ids(broker) == ["bad", "next"]

    @pytest.mark.promise("B6", "W9")
    async def test_a_strict_event_blocks_until_it_is_skipped_with_a_marker(self, place, broker):
        broker.script(failing("bad"))
        hasty = RetryPolicy(max_attempts=1, backoff=Constant(0.005))
        async with place.relay(broker, retry=hasty) as relay:
            await place.write(
                *(Event("made", id=i, key="k", topic="t") for i in ("first", "bad", "next")),
                outbox=place.strict,
            )

            async def tried_often():
                return (await place.record("bad")).attempts >= 3

            await until(tried_often)
            assert ids(broker) == ["first"]
            await place.store.skip("bad", "does not matter any more")
            await until(lambda: relay.counts.done == 3)
        seen = {m.record.kseq: m.record for m in broker.messages}
        assert [(n, r.type) for n, r in seen.items()] == [
            (1, "made"),
            (2, "postroom.skipped"),
            (3, "made"),
        ]
        assert seen[2].data["skipped"] == "bad"
        assert (await place.record("bad")).state == "dead"

    @pytest.mark.promise("G7")
    async def test_keyless_failures_hold_nobody(self, place, broker):
        broker.script(failing("e1", times=3))
        async with place.relay(broker) as relay:
            await place.write(*(Event("made", id=f"e{n}") for n in range(5)))
            await until(place.all_done)
            assert relay.counts.failed == 3
        assert sorted(ids(broker)) == ["e0", "e1", "e2", "e3", "e4"]
        assert (await place.store.stats()).blocked_keys == 0

    @pytest.mark.promise("B1", "B4")
    async def test_a_block_outlives_the_relay_that_made_it(self, place, broker):
        broken = {"k1"}
        broker.script(lambda r: Outcome(Verdict.FAILED, "boom") if r.id in broken else None)
        later = RetryPolicy(backoff=Constant(0.3))
        await place.write(Event("made", id="k1", key="k"), Event("made", id="k2", key="k"))
        await place.relay(broker, retry=later).drain()
        broken.clear()
        await place.write(Event("made", id="k3", key="k"))
        async with place.relay(broker):
            await until(place.all_done)
        assert ids(broker) == ["k1", "k2", "k3"]

    @pytest.mark.promise("B3")
    async def test_hundreds_of_followers_wait_and_come_in_their_order(self, place, broker):
        broken = {"k0"}
        broker.script(lambda r: Outcome(Verdict.FAILED, "boom") if r.id in broken else None)
        patient = RetryPolicy(max_attempts=10**6, backoff=Constant(0.01))
        async with place.relay(broker, retry=patient, batch_size=100, max_batch_size=200):
            await place.write(*(Event("made", id=f"k{n}", key="k") for n in range(1_100)))
            await place.write(*(Event("made", id=f"o{n}", key="o") for n in range(50)))
            await until(lambda: len(ids(broker)) == 50)
            broken.clear()
            await until(lambda: len(ids(broker)) == 1_150)
        assert ids(broker)[50:] == [f"k{n}" for n in range(1_100)]

    @pytest.mark.promise("L7")
    async def test_burying_the_head_by_hand_lets_its_key_go_on(self, place, broker):
        broker.script(failing("bad"))
        patient = RetryPolicy(max_attempts=10**6, backoff=Constant(60.0))
        async with place.relay(broker, retry=patient) as relay:
            await place.write(Event("made", id="bad", key="k"), Event("made", id="next", key="k"))
            await until(lambda: relay.counts.failed == 1)
            assert await place.store.bury(["bad"], "by hand") == 1
            await until(lambda: relay.counts.done == 1)
            assert first_seen(broker) == ["next"]
            assert len(broker.messages) == 1 + relay.counts.repeated
        record = await place.record("bad")
        assert (record.state, record.last_error) == ("dead", "by hand")

    # -- not the event's fault (P2) -----------------------------------------------------------
    @pytest.mark.req("S1.4", "S1.3")
    @pytest.mark.promise("P2", "G2", "G4")
    async def test_an_outage_spends_no_attempt_and_order_holds(self, place, broker, notes):
        async with place.relay(broker, observers=[notes]) as relay:
            broker.go_down("no route to host")
            for n in range(10):
                await place.write(*(Event("made", id=f"{k}{n}", key=k) for k in "abc"))
            await until(lambda: notes.of(BreakerChanged))
            assert set((await place.states()).values()) == {"pending"}
            broker.come_back()
            await until(place.all_done)
            assert (relay.counts.failed, relay.counts.dead) == (0, 0)
        for key in "abc":
            assert [i for i in ids(broker) if i[0] == key] == [f"{key}{n}" for n in range(10)]
        changes = [(fact.state, fact.error) for fact in notes.of(BreakerChanged)]
        assert changes == [("open", "no route to host"), ("closed", "")]
        assert {(await place.record(i)).attempts for i in ids(broker)} == {0}

    @pytest.mark.req("S1.4")
    async def test_a_destination_that_is_away_at_the_start_is_waited_for(self, place, notes):
        class Absent(MemoryBroker):
            async def open(self):
                raise ConnectionError("refused")

        broker = Absent()
        broker.go_down("refused")
        async with place.relay(broker, observers=[notes]) as relay:
            assert relay.is_running
            await place.write(Event("made", id="e1"))
            broker.come_back()
            await until(place.all_done)
        assert ids(broker) == ["e1"]

    @pytest.mark.promise("P2")
    async def test_a_wrong_configuration_waits_alarms_and_recovers(self, place, broker, notes):
        broker.script(failing("e1", times=7, verdict=Verdict.MISCONFIGURED))
        async with place.relay(broker, misconfigured_seconds=0.01, observers=[notes]):
            await place.write(Event("made", id="e1", key="k"), Event("made", id="e2", key="k"))
            await until(place.all_done)
        assert ids(broker) == ["e1", "e2"]
        assert (await place.record("e1")).attempts == 0
        assert len(notes.of(Alarm)) == 7

    # -- doubt (P3, P4) -----------------------------------------------------------------------
    @pytest.mark.promise("P3", "G7")
    async def test_one_that_closes_the_channel_is_found_and_its_neighbours_are_innocent(
        self, place, notes
    ):
        broker = Fragile("poison")
        await place.write(
            *(Event("made", id=f"e{n}", key=f"k{n}") for n in range(5)),
            Event("made", id="poison", key="p"),
            Event("made", id="after", key="p"),
        )
        async with place.relay(broker, groups=1, observers=[notes]):
            await until(lambda: len(ids(broker)) == 6)
        assert sorted(ids(broker)) == ["after", "e0", "e1", "e2", "e3", "e4"]
        dead = await place.record("poison")
        assert (dead.state, dead.attempts) == ("dead", 5)
        assert broker.alone.count("poison") == 15  # three times alone for each attempt
        assert {(await place.record(f"e{n}")).attempts for n in range(5)} == {0}

    @pytest.mark.promise("G3", "P3", "P4")
    async def test_a_lost_reply_leads_to_one_more_copy_and_no_attempt(self, place, broker):
        lost = []
        broker.lose_replies(lambda r: r.id == "e1" and not lost and not lost.append(r))
        async with place.relay(broker):
            await place.write(Event("made", id="e1", key="k"), Event("made", id="e2", key="k"))
            await until(place.all_done)
        assert ids(broker) == ["e1", "e1", "e2"]
        assert (await place.record("e1")).attempts == 0

    @pytest.mark.promise("P1", "P3")
    async def test_a_publish_without_an_answer_is_given_up_and_others_are_not_held(
        self, place, broker
    ):
        hold = broker.hold(lambda r: r.id == "e1")
        async with place.relay(broker, publish_seconds=0.2):
            await place.write(Event("made", id="e1", key="k"), Event("made", id="e2", key="o"))
            await until(lambda: ids(broker) == ["e2"], 5)
            hold.release()
            await until(place.all_done)
        assert ids(broker) == ["e2", "e1"]

    # -- a store in trouble (L5, S1.8) --------------------------------------------------------
    @pytest.mark.promise("L5", "G3")
    @pytest.mark.parametrize("error", [StoreRetryableError, StoreUnknownError, StoreError])
    @pytest.mark.parametrize("when", ["before", "after"])
    async def test_a_settle_that_fails_is_repeated_and_nothing_is_published_again(
        self, place, broker, notes, error, when
    ):
        left = [error("once"), error("twice")]

        async def fail(*_):
            if left:
                raise left.pop()

        reach = Reach(place.another())
        getattr(reach, when)["settle"] = fail
        async with place.relay(broker, store=reach, observers=[notes]) as relay:
            await place.write(Event("made", id="e1", key="k"), Event("made", id="e2", key="k"))
            await until(place.all_done)
            assert (relay.counts.repeated, relay.counts.fenced) == (0, 0)
        assert ids(broker) == ["e1", "e2"]
        assert len(notes.of(StoreTrouble)) == 2

    async def test_troubles_of_every_other_call_are_told_and_survived(self, place, broker, notes):
        reach = Reach(place.another())
        calls = ("heartbeat", "take", "read", "stage", "repair_blocks", "wait_for_change", "retake")
        left = dict.fromkeys(calls, 2)

        def trouble(name):
            async def fail(*_):
                if left[name]:
                    left[name] -= 1
                    raise StoreError(f"no {name}")

            return fail

        reach.before = {name: trouble(name) for name in calls}
        async with place.relay(broker, store=reach, lease_seconds=0.3, observers=[notes]):
            await place.write(Event("made", id="e1"))
            await until(place.all_done)
        assert ids(broker) == ["e1"]
        told = " ".join(fact.error for fact in notes.of(StoreTrouble))
        for name in ("heartbeat", "take", "read", "stage"):
            assert f"no {name}" in told

    @pytest.mark.promise("L1", "L7")
    async def test_what_was_read_before_the_lane_was_taken_away_is_not_sent(self, place, broker):
        """Between a read and its reply a person buried the event, and the lane is ours again."""
        reach, slow = Reach(place.another()), Stop()
        relay = place.relay(broker, store=reach, lease_seconds=0.6)
        async with relay:
            await until(lambda: place.owners())

            async def reply(question):
                if await place.record("e1"):
                    await slow(question)

            reach.after["read"] = reply
            await place.write(Event("made", id="e1", key="k"))
            await asyncio.wait_for(slow.reached.wait(), 5)
            assert await place.store.bury(["e1"], "by hand") == 1
            lane = (await place.record("e1")).lane

            async def ours_again():
                return (await place.store.leases("main")).leases[lane].owner == relay.owner

            await until(ours_again)
            slow.released.set()
            await place.write(Event("made", id="e2", key="k"))
            await until(lambda: "e2" in ids(broker))
        assert ids(broker) == ["e2"]
