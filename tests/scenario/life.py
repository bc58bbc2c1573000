"""A relay's life: start, stop, drain, waking, streams, batches, pruning."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker
from postroom.event import Event
from postroom.observer import Alarm, BreakerChanged, Woken
from tests.scenario.place import Reach, Stop, ids, until


class Batches(MemoryBroker):
    """Remembers the sizes of what it was handed at a time."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    async def publish(self, batch, reporter):
        self.sizes.append((len(batch), sum(len(record.payload) for record in batch)))
        await super().publish(batch, reporter)


class LifeScenes:
    # -- start and stop (S4.3) ----------------------------------------------------------------
    @pytest.mark.req("S4.3")
    async def test_start_stop_and_is_running(self, place, broker):
        relay = place.relay(broker)
        assert not relay.is_running
        assert relay.owner is None
        await relay.stop()
        await relay.start()
        assert relay.is_running
        first = relay.owner
        await relay.start()
        assert relay.owner == first
        await until(lambda: place.owners())
        await relay.stop()
        assert not relay.is_running
        await relay.stop()
        await relay.kill()

    @pytest.mark.req("S4.3")
    async def test_a_stopped_relay_may_be_started_again_as_somebody_else(self, place, broker):
        relay = place.relay(broker)
        owners = set()
        for n in range(3):
            async with relay:
                owners.add(relay.owner)
                await place.write(Event("made", id=f"e{n}"))
                await until(lambda: relay.counts.done == 1)
        assert ids(broker) == ["e0", "e1", "e2"]
        assert len(owners) == 3

    @pytest.mark.promise("L4")
    async def test_who_stops_gives_its_lanes_back_and_leaves(self, place, broker):
        relay = place.relay(broker, lease_seconds=600.0)
        await relay.start()
        await until(lambda: place.owners())
        assert await place.owners() == {relay.owner: 64}
        await relay.stop()
        assert await place.owners() == {}
        assert (await place.store.leases("main")).members == ()

    async def test_two_that_stop_it_at_once_both_wait_for_the_end(self, place, broker):
        relay, hold = place.relay(broker), broker.hold()
        await relay.start()
        await place.write(Event("made", id="e1"))
        await asyncio.wait_for(hold.reached.wait(), 5)
        stops = [asyncio.create_task(relay.stop()) for _ in range(2)]
        await asyncio.sleep(0)
        hold.release()
        await asyncio.gather(*stops)
        assert not relay.is_running
        assert await place.states() == {"e1": "done"}

    @pytest.mark.req("S4.3")
    async def test_a_stop_finishes_what_is_in_flight(self, place, broker):
        relay, hold = place.relay(broker), broker.hold()
        await relay.start()
        await place.write(Event("made", id="e1", key="k"), Event("made", id="e2", key="k"))
        await asyncio.wait_for(hold.reached.wait(), 5)
        stopping = asyncio.create_task(relay.stop())
        await asyncio.sleep(0)
        assert relay.is_running
        hold.release()
        await asyncio.wait_for(stopping, 5)
        assert await place.states() == {"e1": "done", "e2": "done"}
        assert await place.owners() == {}

    async def test_a_stop_does_not_wait_for_ever_and_nothing_is_lost(self, place, broker):
        relay, hold = place.relay(broker, stop_seconds=0.1), broker.hold()
        await relay.start()
        await place.write(Event("made", id="e1"))
        await asyncio.wait_for(hold.reached.wait(), 5)
        await asyncio.wait_for(relay.stop(), 5)
        assert await place.states() == {"e1": "pending"}
        assert await place.owners() == {}
        hold.release()
        assert (await place.relay(broker).drain()).done == 1
        assert ids(broker) == ["e1"]

    async def test_a_part_that_crashes_stops_the_whole_and_says_so(self, place, broker, notes):
        """A relay that works in part would look well and deliver nothing."""

        async def bug(*_):
            raise ZeroDivisionError("a bug")

        reach = Reach(place.another())
        reach.before["read"] = bug
        relay = place.relay(broker, store=reach, observers=[notes])
        await relay.start()
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await asyncio.wait_for(relay.wait(), 5)
        assert not relay.is_running
        assert [fact.about for fact in notes.of(Alarm)] == ["the relay crashed"]
        del reach.before["read"]
        await place.store.leave("main", (await place.store.leases("main")).members[0].owner)
        await place.write(Event("made", id="e1"))
        async with relay:
            await until(place.all_done)

    # -- drain --------------------------------------------------------------------------------
    @pytest.mark.req("S4.3", "S3.2")
    async def test_drain_sends_what_is_due_and_returns_counts(self, place, broker):
        later = datetime.now(UTC) + timedelta(hours=1)
        await place.write(
            *(Event("made", id=f"e{n}", key=f"k{n % 3}") for n in range(7)),
            Event("made", id="later", available_at=later),
            Event("made", id="bad"),
        )
        broker.script(lambda r: Outcome(Verdict.REJECTED, "no") if r.id == "bad" else None)
        relay = place.relay(broker)
        counts = await relay.drain()
        assert (counts.done, counts.failed, counts.dead) == (7, 0, 1)
        assert (counts.fenced, counts.repeated) == (0, 0)
        assert not relay.is_running
        assert sorted(ids(broker)) == [f"e{n}" for n in range(7)]
        assert (await place.states())["later"] == "pending"
        assert (await place.relay(broker).drain()).done == 0

    async def test_drain_ends_early_if_the_destination_is_away(self, place, broker):
        await place.write(*(Event("made", id=f"e{n}") for n in range(5)))
        broker.go_down()
        counts = await asyncio.wait_for(place.relay(broker).drain(), 5)
        assert (counts.done, counts.failed, counts.dead) == (0, 0, 0)
        assert set((await place.states()).values()) == {"pending"}

    # -- waking -------------------------------------------------------------------------------
    async def test_a_kick_wakes_at_once(self, place, broker, notes):
        """Nothing else could: no poll, no notification."""
        reach = Reach(place.another(), notify=False)
        relay = place.relay(broker, store=reach, poll_seconds=60.0, observers=[notes])
        await relay.start()
        await until(lambda: place.owners())
        reach.before["stage"] = Stop()
        await place.write(Event("made", id="e1"))
        await until(lambda: ids(broker) == ["e1"], 2.0)
        assert [fact.by for fact in notes.of(Woken)] == ["kick"]

    async def test_without_a_kick_the_poll_finds_it(self, place, broker, notes):
        reach = Reach(place.another(), notify=False)
        relay = place.relay(broker, store=reach, poll_seconds=0.05, observers=[notes])
        await relay.start()
        await until(lambda: place.owners())
        await place.write_quietly(Event("made", id="e1"))
        await until(lambda: ids(broker) == ["e1"])
        assert "kick" not in {fact.by for fact in notes.of(Woken)}

    async def test_without_a_kick_or_a_poll_the_store_says_so(self, place, broker, notes):
        reach = Reach(place.another())
        relay = place.relay(broker, store=reach, poll_seconds=60.0, observers=[notes])
        await relay.start()
        await until(lambda: place.owners())
        reach.before["stage"] = Stop()
        for sent in range(1, 21):  # a look that was under way may find the first ones by itself
            await place.write_quietly(Event("made", id=f"e{sent}"))
            await until(lambda sent=sent: len(ids(broker)) == sent, 2.0)
            if notes.of(Woken):
                break
        assert {fact.by for fact in notes.of(Woken)} == {"change"}

    # -- what goes when -----------------------------------------------------------------------
    @pytest.mark.req("S3.2")
    @pytest.mark.promise("G1")
    async def test_what_was_rolled_back_is_never_seen(self, place, broker):
        async with place.relay(broker):
            await place.roll_back(Event("made", id="ghost"))
            await place.write(Event("made", id="e1"))
            await place.roll_back(Event("made", id="another ghost"))
            await until(place.all_done)
        assert ids(broker) == ["e1"]

    async def test_a_delayed_event_goes_when_it_is_due_and_holds_nobody(self, place, broker):
        soon = datetime.now(UTC) + timedelta(seconds=0.3)
        never = soon + timedelta(days=1)
        seen = {}
        broker.script(lambda record: seen.setdefault(record.id, datetime.now(UTC)) and None)
        async with place.relay(broker):
            await place.write(
                Event("made", id="never", key="k", available_at=never),
                Event("made", id="soon", key="k", available_at=soon),
                Event("made", id="now", key="k"),
            )
            await until(lambda: {"now", "soon"} <= seen.keys())
        assert sorted(ids(broker)) == ["now", "soon"]
        assert seen["soon"] >= soon

    @pytest.mark.req("S4.6")
    @pytest.mark.promise("G4")
    async def test_each_key_arrives_in_the_order_of_writing(self, place, broker):
        async with place.relay(broker, batch_size=5, max_batch_size=20):
            for part in range(10):
                await place.write(
                    *(Event("made", part * 10 + n, key=f"k{n % 4}") for n in range(10))
                )
            await until(place.all_done)
        for key in ("k0", "k1", "k2", "k3"):
            numbers = [m.record.data for m in broker.messages if m.record.key == key]
            assert numbers == sorted(numbers)
        assert len(broker.messages) == 100

    @pytest.mark.req("S1.4")
    @pytest.mark.promise("R5")
    async def test_streams_are_independent_queues(self, place, notes):
        dead, alive = MemoryBroker(), MemoryBroker()
        dead.go_down()
        mail = place.relay(dead, stream="mail", observers=[notes])
        main = place.relay(alive)
        async with mail, main:
            await place.write(
                *(Event("made", id=f"mail-{n}", key="k", stream="mail") for n in range(3)),
                *(Event("made", id=f"main-{n}", key="k") for n in range(3)),
            )
            await until(lambda: len(alive.messages) == 3 and notes.of(BreakerChanged))
            assert ids(alive) == ["main-0", "main-1", "main-2"]
            assert mail.counts.done == 0
            dead.come_back()
            await until(place.all_done)
        assert ids(dead) == ["mail-0", "mail-1", "mail-2"]
        assert {fact.stream for fact in notes.of(BreakerChanged)} == {"mail"}

    # -- batches ------------------------------------------------------------------------------
    @pytest.mark.req("S4.3", "S4.8")
    async def test_batches_are_bounded_by_rows(self, place):
        broker = Batches()
        await place.write(*(Event("made", n, key=f"k{n}") for n in range(200)))
        await place.relay(broker, batch_size=10, max_batch_size=40, groups=1).drain()
        assert sum(rows for rows, _ in broker.sizes) == 200
        assert max(rows for rows, _ in broker.sizes) <= 40

    @pytest.mark.promise("R4")
    async def test_batches_are_bounded_by_bytes_but_one_always_goes(self, place):
        broker = Batches()
        await place.write(
            *(Event("made", b"x" * 400, key=f"k{n}") for n in range(20)),
            Event("made", b"x" * 5_000, id="large"),
        )
        await place.relay(broker, max_batch_bytes=1_000, groups=1).drain()
        assert sum(rows for rows, _ in broker.sizes) == 21
        assert {size for _, size in broker.sizes if size > 1_000} == {5_000}

    # -- what is left -------------------------------------------------------------------------
    @pytest.mark.req("S1.3")
    async def test_done_events_are_kept_for_people_by_default(self, place, broker):
        await place.write(Event("made", id="e1"))
        await place.relay(broker).drain()
        record = await place.record("e1")
        assert (record.state, record.last_error) == ("done", None)

    @pytest.mark.req("S3.2")
    async def test_or_deleted_at_once(self, place, broker):
        await place.write(Event("made", id="e1"), Event("made", id="bad"))
        broker.script(lambda r: Outcome(Verdict.REJECTED, "no") if r.id == "bad" else None)
        await place.relay(broker, keep_done_seconds=0).drain()
        assert await place.states() == {"bad": "dead"}

    async def test_done_events_are_pruned_when_they_are_old_and_dead_ones_never(
        self, place, broker
    ):
        await place.write(Event("made", id="e1"), Event("made", id="bad"))
        broker.script(lambda r: Outcome(Verdict.REJECTED, "no") if r.id == "bad" else None)
        async with place.relay(broker, keep_done_seconds=0.05, prune_seconds=0.02):
            await until(lambda: len(ids(broker)) == 1)

            async def pruned():
                return await place.states() == {"bad": "dead"}

            await until(pruned)
