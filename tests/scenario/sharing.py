"""Several relays serve one stream: they share its lanes, hand them over, and take over."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.event import Event
from postroom.observer import LanesChanged
from postroom.record import key_hash, lane_of
from tests.scenario.place import ids, until

KEYS = [f"k{n}" for n in range(40)]
SHARING = {"lease_seconds": 1.5}
CALM = {"lease_seconds": 4.0}  # no lane may be lost, on a busy machine either


class Traffic:
    """Events of forty keys, written one commit after another until it is told to stop."""

    def __init__(self, place):
        self._place = place
        self._stop = asyncio.Event()
        self.written = []

    @asynccontextmanager
    async def flowing(self):
        task = asyncio.create_task(self._write())
        try:
            yield self
        finally:
            self._stop.set()
            await task

    async def _write(self):
        while not self._stop.is_set():
            part = [Event("made", len(self.written), key=key) for key in KEYS]
            await self._place.write(*part)
            self.written += [event.id for event in part]
            await asyncio.sleep(0.01)

    async def goes_on(self, parts=3):
        """Wait until more has been written."""
        wanted = len(self.written) + parts * len(KEYS)
        await until(lambda: len(self.written) >= wanted)


def in_order(broker):
    """Each key's events are first seen in the order of writing (`seq`)."""
    last, seen = {}, set()
    for _, record in broker.messages:
        if record.id not in seen:
            assert record.seq > last.get(record.key, 0), f"{record.id} came too late"
            last[record.key] = record.seq
            seen.add(record.id)
    return True


class SharingScenes:
    @pytest.fixture
    def owners(self, place):
        """Whether these relays hold so many lanes."""

        def owners(*shares):
            async def held():
                found = await place.owners()
                return [found.get(relay.owner, 0) for relay, _ in shares] == [n for _, n in shares]

            return held

        return owners

    @pytest.mark.req("S4.7", "S4.6")
    @pytest.mark.promise("L4", "G3", "G4")
    async def test_joining_and_leaving_under_traffic_repeats_nothing_and_keeps_the_order(
        self, place, broker, owners, notes
    ):
        first = place.relay(broker, owner="anna", observers=[notes], **CALM)
        second = place.relay(broker, owner="bert", observers=[notes], **CALM)
        traffic = Traffic(place)
        async with first, traffic.flowing():
            await until(owners((first, 64)))
            await traffic.goes_on()
            async with second:
                await until(owners((first, 32), (second, 32)))
                await traffic.goes_on()
                await until(lambda: second.counts.done > 0)
            assert "bert" not in await place.owners()
            await until(owners((first, 64)))
            await traffic.goes_on()
            await first.stop()
        async with place.relay(broker, **CALM):
            await until(place.all_done)
        assert sorted(ids(broker)) == sorted(traffic.written)  # nothing lost, nothing twice
        assert in_order(broker)
        assert [fact for fact in notes.of(LanesChanged) if fact.change == "lost"] == []

    @pytest.mark.req("S4.7")
    @pytest.mark.promise("L4")
    async def test_three_share_the_lanes_as_evenly_as_they_can(self, place, broker, owners):
        relays = [place.relay(broker, owner=name, **SHARING) for name in ("anna", "bert", "carl")]
        for relay in relays:
            await relay.start()
        await until(owners(*zip(relays, (22, 21, 21), strict=True)))
        await relays[1].stop()
        await until(owners((relays[0], 32), (relays[2], 32)))

    @pytest.mark.req("S2.3", "S1.4")
    @pytest.mark.promise("G2", "G4", "L1")
    async def test_one_that_dies_is_replaced_when_its_leases_have_run_out(
        self, place, broker, owners
    ):
        first = place.relay(broker, owner="anna", **SHARING)
        second = place.relay(broker, owner="bert", **SHARING)
        traffic = Traffic(place)
        async with second, traffic.flowing():
            await first.start()
            await until(owners((first, 32), (second, 32)))
            await traffic.goes_on()
            await first.kill()
            await until(owners((second, 64)))
            await traffic.goes_on()
        async with place.relay(broker, **SHARING):
            await until(place.all_done)
        assert set(ids(broker)) == set(traffic.written)
        assert in_order(broker)

    @pytest.mark.promise("L4", "L6")
    async def test_lanes_go_to_the_relay_whose_destination_is_there(self, place, owners):
        away, there = MemoryBroker(), MemoryBroker()
        away.go_down()
        ill = place.relay(away, owner="anna", **SHARING)
        well = place.relay(there, owner="bert", **SHARING)
        async with ill, well:
            await place.write(*(Event("made", key=key) for key in KEYS))
            await until(place.all_done)
            await until(owners((ill, 0), (well, 64)))
            assert len(there.messages) == 40
            away.come_back()
            await until(owners((ill, 32), (well, 32)))

    @pytest.mark.promise("L4")
    async def test_a_lane_with_an_event_in_flight_is_not_handed_over(self, place, broker, owners):
        first = place.relay(broker, owner="anna", **SHARING)
        second = place.relay(broker, owner="bert", **SHARING)
        hold = broker.hold(lambda record: record.id == "held")
        key = next(k for k in KEYS if lane_of(key_hash(None, k, "")) >= 32)  # the highest go first
        async with first:
            await until(owners((first, 64)))
            await place.write(Event("made", id="held", key=key), Event("made", id="n", key=key))
            await asyncio.wait_for(hold.reached.wait(), 5)
            lane = (await place.record("held")).lane
            async with second:
                await until(owners((first, 33), (second, 31)))
                membership = await place.store.leases("main")
                assert membership.leases[lane].owner == "anna"
                hold.release()
                await until(owners((first, 32), (second, 32)))
                await until(place.all_done)
        assert ids(broker) == ["held", "n"]
