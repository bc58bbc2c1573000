"""The contract of reading and scheduling (rules R1 to R5, W7)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from postroom.event import Event
from postroom.outbox import Outbox
from postroom.store import ReadRequest, Store
from postroom.testing.store.tools import (
    Add,
    Hand,
    Write,
    event,
    keys_of_lane,
    names,
    needs,
    patience,
    until,
)

LONG_AGO = datetime(2001, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)


class ReadingContract:
    """Which events a read returns, and in which order."""

    @pytest.mark.req("S2.3", "S4.6")
    @pytest.mark.promise("G4", "R1")
    async def test_a_lane_is_read_in_the_order_of_writing(self, store: Store, add: Add) -> None:
        a, b = keys_of_lane(5, 2)
        await add(event("1", a), event("2", b), event("3", a))
        await add(event("4", b))
        await add(event("5", a))
        records = await Hand(store).read([5])
        assert names(records) == ["1", "2", "3", "4", "5"]
        assert [r.seq for r in records] == sorted(r.seq for r in records)
        assert {r.lane for r in records} == {5}

    @pytest.mark.promise("R1")
    async def test_only_the_lanes_asked_for_are_read_oldest_first(
        self, store: Store, add: Add
    ) -> None:
        keys = {lane: keys_of_lane(lane, 1)[0] for lane in (3, 9, 60)}
        for n in "12":
            await add(*(event(f"{lane}.{n}", key) for lane, key in keys.items()))
        hand = Hand(store)
        assert names(await hand.read([60, 3, 9])) == ["3.1", "9.1", "60.1", "3.2", "9.2", "60.2"]
        assert names(await hand.read([9, 60])) == ["9.1", "60.1", "9.2", "60.2"]
        assert names(await hand.read([60, 9, 3], rows=2)) == ["9.1", "60.1"]
        assert await hand.read([4, 5]) == []
        assert await hand.read([]) == []

    @pytest.mark.promise("R1", "D1")
    async def test_a_full_lane_leaves_room_for_the_others(self, store: Store, add: Add) -> None:
        full, small = keys_of_lane(1, 1)[0], keys_of_lane(2, 1)[0]
        await add(*(event(f"full {n}", full) for n in range(50)), event("small", small))
        found = await Hand(store).read([1, 2], per_lane=3)
        assert names(found) == ["full 0", "full 1", "full 2", "small"]

    @pytest.mark.promise("R4")
    async def test_a_read_is_bound_by_rows(self, store: Store, add: Add) -> None:
        keys = [keys_of_lane(lane, 1)[0] for lane in (1, 2)]
        await add(*(event(f"{key} {n}", key) for key in keys for n in range(5)))
        found = await Hand(store).read([2, 1], rows=7)
        assert names(found) == [f"{keys[0]} {n}" for n in range(5)] + [
            f"{keys[1]} 0",  # the first of a lane goes before the fifth of another …
            f"{keys[1]} 1",  # … and the rest by age
        ]
        assert names(await Hand(store).read([2, 1], rows=2)) == [f"{keys[0]} 0", f"{keys[1]} 0"]

    @pytest.mark.promise("R4")
    async def test_a_read_is_bound_by_bytes_and_skips_no_large_event(
        self, store: Store, add: Add
    ) -> None:
        (key,) = keys_of_lane(1, 1)
        sizes = {"a": 400, "b": 500, "c": 300, "d": 1}
        await add(*(Event("t", b"x" * n, id=name, key=key) for name, n in sizes.items()))
        hand = Hand(store)
        assert names(await hand.read([1], size=900)) == ["a", "b"]
        assert names(await hand.read([1], size=899)) == ["a"]
        assert names(await hand.read([1], size=1_200)) == ["a", "b", "c"]

    @pytest.mark.promise("R4")
    async def test_headers_count_towards_the_bytes_of_a_read(self, store: Store, add: Add) -> None:
        (key,) = keys_of_lane(1, 1)
        large = {"note": "x" * 500}
        await add(*(Event("t", b"x", id=name, key=key, headers=large) for name in "abc"))
        assert names(await Hand(store).read([1], size=700)) == ["a"]
        assert names(await Hand(store).read([1], size=1_100)) == ["a", "b"]

    @pytest.mark.promise("R4", "B6")
    async def test_a_marker_has_its_own_bytes_and_those_of_the_headers(
        self, store: Store, add: Add
    ) -> None:
        (key,) = keys_of_lane(1, 1)
        await add(Event("t", b"x" * 5_000, id="a", key=key, headers={"note": "x" * 500}))
        await add(event("b", key), event("c", key))
        await store.skip("a", "not needed")
        assert len(await Hand(store).read([1], size=510)) == 1
        assert len(await Hand(store).read([1], size=1_000)) == 3

    @pytest.mark.promise("R4")
    async def test_there_is_always_one_event(self, store: Store, add: Add) -> None:
        await add(Event("t", b"x" * 500_000, id="large"), Event("t", b"x", id="small"))
        assert len(await Hand(store).read(size=10)) == 1
        (key,) = keys_of_lane(1, 1)
        await add(Event("t", b"x" * 500_000, id="first", key=key), event("second", key))
        assert names(await Hand(store).read([1], size=10)) == ["first"]
        assert names(await Hand(store).read([1], rows=1)) == ["first"]

    @pytest.mark.promise("R3")
    async def test_what_is_in_flight_is_left_out(self, store: Store, add: Add) -> None:
        a, b, c = keys_of_lane(1, 3)
        await add(*(event(f"{n}{k}", k) for n in range(4) for k in (a, b, c)))
        hand = Hand(store)
        flying = {r.key_hash for r in await hand.read() if r.key in (a, b)}
        assert names(await hand.read([1], per_lane=2, exclude=flying)) == [f"0{c}", f"1{c}"]
        everything = flying | {r.key_hash for r in await hand.read()}
        assert await hand.read([1], exclude=everything) == []

    @pytest.mark.promise("L1", "L7")
    async def test_a_lane_that_its_reader_does_not_hold_brings_nothing(
        self, store: Store, add: Add
    ) -> None:
        ours, lost = keys_of_lane(1, 1)[0], keys_of_lane(2, 1)[0]
        await add(event("ours", ours), event("lost", lost))
        tokens = await store.take("main", "anna", [1, 2], 60)

        async def read(owner: str | None, held: dict[int, int]) -> list[str]:
            request = ReadRequest("main", [1, 2], 10, 10, 10**6, owner=owner, tokens=held)
            return names(await store.read(request))

        assert await read("anna", tokens) == ["ours", "lost"]
        assert await read("bert", tokens) == []
        assert await read("anna", tokens | {2: tokens[2] + 1}) == ["ours"]
        assert await read("anna", {1: tokens[1]}) == ["ours"]
        assert await read(None, {}) == ["ours", "lost"]
        await store.release("main", "anna", {2: tokens[2]})
        assert await read("anna", tokens) == ["ours"]
        retaken = await store.retake("main", "anna", {1: tokens[1]}, 60)
        assert await read("anna", tokens) == []
        assert await read("anna", retaken) == ["ours"]

    @pytest.mark.promise("R1", "G2")
    async def test_a_read_changes_nothing_and_has_no_memory(self, store: Store, add: Add) -> None:
        await add(*(event(f"e{n}", "k") for n in range(3)))
        hand = Hand(store)
        assert await hand.read() == await hand.read()
        assert names(await hand.read(rows=1)) == names(await hand.read(rows=1)) == ["e0"]

    @needs("transactions", "concurrent_writers")
    @pytest.mark.req("S4.7")
    @pytest.mark.promise("G2", "R1")
    async def test_a_late_committer_is_not_skipped(
        self, store: Store, write: Write, add: Add
    ) -> None:
        low, high = keys_of_lane(1, 2)
        hand = await Hand(store).take()
        async with write(store) as tx:
            await Outbox().add(tx, event("written first", low))
            await add(event("committed first", high))
            early = await hand.read()
            assert names(early) == ["committed first"]
            await hand.settle(done=early)
        late = await hand.read()
        assert names(late) == ["written first"]
        assert late[0].seq < early[0].seq

    @needs("transactions", "concurrent_writers")
    @pytest.mark.promise("G2", "R1")
    async def test_a_late_committer_takes_its_place_before_what_is_unsent(
        self, store: Store, write: Write, add: Add
    ) -> None:
        (key,) = keys_of_lane(1, 1)
        async with write(store) as tx:
            await Outbox().add(tx, event("low", key))
            await add(event("high", key))
        assert names(await Hand(store).read()) == ["low", "high"]

    @needs("transactions", "concurrent_writers")
    @pytest.mark.promise("W9")
    async def test_a_second_strict_writer_of_a_key_waits_for_the_first(
        self, store: Store, write: Write, add: Add
    ) -> None:
        async with write(store) as tx:
            await Outbox(ordering="strict").add(tx, event("first", "k"))
            second = asyncio.ensure_future(add(event("second", "k"), strict=True))
            await add(event("apart", "other"), strict=True)
        async with patience():
            await second
        assert {r.id: r.kseq for r in await Hand(store).read()} == {
            "first": 1,
            "second": 2,
            "apart": 1,
        }

    @pytest.mark.promise("R5")
    async def test_streams_are_independent(self, store: Store, add: Add) -> None:
        await add(event("here", "k"), event("there", "k", stream="other"))
        here, there = await Hand(store).take(), await Hand(store, "bert", "other").take()
        await here.fail(await here.only("here"), delay=1_000)
        await add(event("here 2", "k"), event("there 2", "k", stream="other"))
        assert [(r.id, r.barrier is None) for r in await there.read()] == [
            ("there", True),
            ("there 2", True),
        ]
        assert [(r.id, r.barrier is None) for r in await here.read()] == [("here 2", False)]
        assert await store.streams() == ["main", "other"]


class FairStagingContract:
    """A lane that is full of due events holds up no other."""

    async def test_due_events_of_one_lane_do_not_hold_up_the_others(
        self, store: Store, add: Add
    ) -> None:  # E-7
        (other,) = keys_of_lane(60, 1)
        full = keys_of_lane(3, 12)
        await add(*(event(key, key) for key in [*full, other]))
        hand = await Hand(store).take()
        for name in [*full, other]:  # the other one is due last
            await hand.fail(await hand.only(name))
        assert await hand.stage(8) in range(3, 9)
        assert other in names(await hand.read())


class SchedulingContract:
    """Events that wait for their time."""

    @pytest.mark.req("S2.2")
    @pytest.mark.promise("W7")
    async def test_an_event_of_the_future_waits(self, store: Store, add: Add) -> None:
        await add(event("later", available_at=datetime.now(UTC) + timedelta(hours=1)))
        hand = Hand(store)
        moved, due_seconds, ready = await store.stage("main", range(64), 100)
        assert (moved, ready) == (0, False)
        assert due_seconds is not None
        assert 3_500 < due_seconds <= 3_600
        assert await hand.read() == []

    @pytest.mark.promise("W7")
    async def test_an_event_of_the_past_goes_at_once(self, store: Store, add: Add) -> None:
        await add(event("now", available_at=LONG_AGO))
        assert names(await Hand(store).read()) == ["now"]
        assert await store.stage("main", range(64), 100) == (0, None, True)

    @pytest.mark.req("S2.2", "S2.3")
    @pytest.mark.promise("W7")
    async def test_an_event_is_staged_when_it_is_due(self, store: Store, add: Add) -> None:
        now = datetime.now(UTC)
        await add(
            event("soon", available_at=now + timedelta(milliseconds=150)),
            event("late", available_at=now + timedelta(hours=1)),
        )
        hand = Hand(store)

        async def is_staged() -> bool:  # or was due before it was written, on a slow machine
            return await hand.stage() > 0 or bool(await hand.read())

        await until(is_staged)
        assert datetime.now(UTC) >= now + timedelta(milliseconds=150)
        assert names(await hand.read()) == ["soon"]

    async def test_only_the_lanes_asked_for_are_staged(self, store: Store, add: Add) -> None:
        (one,), (two,) = keys_of_lane(1, 1), keys_of_lane(2, 1)
        await add(event("one", one), event("two", two))
        hand = await Hand(store).take()
        for record in await hand.read():
            await hand.fail(record)
        assert await store.stage("main", [3], 100) == (0, None, False)
        assert await store.stage("main", [2], 100) == (1, None, True)
        assert names(await hand.read()) == ["two"]

    async def test_staging_goes_in_steps(self, store: Store, add: Add) -> None:
        await add(*(event(f"e{n}") for n in range(5)))
        hand = await Hand(store).take()
        for record in await hand.read():
            await hand.fail(record)
        assert await store.stage("main", range(64), 3) == (3, 0.0, True)
        assert await store.stage("main", range(64), 3) == (2, None, True)
        assert len(await hand.read()) == 5
