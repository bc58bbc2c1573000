"""The contract of failed heads (rules B1 to B5)."""

from __future__ import annotations

import pytest

from postroom.settlement import FailedOutcome
from postroom.store import Store
from postroom.testing.store.tools import (
    FAR,
    Add,
    Another,
    Hand,
    event,
    keys_of_lane,
    names,
    until,
)


class BlockContract:
    """A failed head holds its own key and nothing else (G4, G7)."""

    @pytest.mark.req("S4.6")
    @pytest.mark.promise("G4", "G7", "B1", "B2")
    async def test_a_failed_head_blocks_only_its_key(self, store: Store, add: Add) -> None:
        bad, good = keys_of_lane(1, 2)
        await add(event("head", bad), event("follower", bad), event("neighbour", good))
        hand = await Hand(store).take()
        head = await hand.only("head")
        await hand.fail(head, delay=FAR)
        assert {r.id: r.barrier for r in await hand.read()} == {
            "follower": head.seq,
            "neighbour": None,
        }
        assert (await store.stats("main")).blocked_keys == 1

    @pytest.mark.promise("G4", "B2")
    async def test_each_of_many_blocked_keys_is_read_with_its_barrier(
        self, store: Store, add: Add
    ) -> None:
        keys = [f"k{n}" for n in range(130)]
        await add(*(event(f"{key} head", key) for key in keys))
        await add(*(event(f"{key} follower", key) for key in keys))
        hand = await Hand(store).take()
        heads = {r.key: r for r in await hand.read() if r.id.endswith("head")}
        await hand.settle(failed=[FailedOutcome(r, 1, FAR, "boom") for r in heads.values()])
        barriers = {r.key: r.barrier for r in await hand.read()}
        assert barriers == {key: head.seq for key, head in heads.items()}

    @pytest.mark.req("S4.6")
    @pytest.mark.promise("G4", "B1")
    async def test_the_block_outlives_its_relay(
        self, store: Store, add: Add, another: Another
    ) -> None:
        await add(event("head", "k"), event("follower", "k"))
        anna = await Hand(store).take()
        head = await anna.only("head")
        await anna.fail(head, delay=FAR)
        await store.leave("main", "anna")
        bert = await Hand(await another(), "bert").take()
        await add(event("new", "k"))
        assert [(r.id, r.barrier) for r in await bert.read()] == [
            ("follower", head.seq),
            ("new", head.seq),
        ]

    @pytest.mark.promise("G7", "W10")
    async def test_a_failure_without_a_key_blocks_nobody(self, store: Store, add: Add) -> None:
        await add(event("keyless"), event("other keyless"), event("keyed", "k"))
        hand = await Hand(store).take()
        await hand.fail(await hand.only("keyless"), delay=FAR)
        assert {r.id: r.barrier for r in await hand.read()} == {
            "other keyless": None,
            "keyed": None,
        }
        assert (await store.stats()).blocked_keys == 0

    @pytest.mark.promise("G4", "B2")
    async def test_the_head_comes_back_first(self, store: Store, add: Add) -> None:
        await add(event("head", "k"), event("follower", "k"))
        hand = await Hand(store).take()
        head = await hand.only("head")
        await hand.fail(head)
        await hand.stage()
        assert [(r.id, r.barrier) for r in await hand.read()] == [
            ("head", head.seq),
            ("follower", head.seq),
        ]

    @pytest.mark.promise("B3")
    async def test_parked_followers_are_out_of_the_way_until_the_head_is_done(
        self, store: Store, add: Add
    ) -> None:
        await add(*(event(name, "k") for name in ("head", "1", "2", "3")))
        hand = await Hand(store).take()
        await hand.fail(await hand.only("head"))
        await hand.settle(parked=await hand.read())
        assert await hand.read() == []
        await hand.stage()
        (head,) = await hand.read()
        await hand.settle(done=[head])
        assert [(r.id, r.barrier) for r in await hand.read()] == [
            ("1", None),
            ("2", None),
            ("3", None),
        ]
        assert (await store.stats()).blocked_keys == 0

    @pytest.mark.promise("B3")
    async def test_nothing_is_parked_behind_a_key_that_is_free(
        self, store: Store, add: Add
    ) -> None:
        await add(event("head", "k"), event("follower", "k"))
        hand = await Hand(store).take()
        await hand.fail(await hand.only("head"))
        await hand.stage()
        head, follower = await hand.read()
        await hand.settle(done=[head])
        await hand.settle(parked=[follower])
        assert names(await hand.read()) == ["follower"]

    @pytest.mark.promise("B3")
    async def test_the_event_at_the_barrier_is_not_parked(self, store: Store, add: Add) -> None:
        await add(event("head", "k"))
        hand = await Hand(store).take()
        await hand.fail(await hand.only("head"))
        await hand.stage()
        (head,) = await hand.read()
        await hand.settle(parked=[head])
        assert names(await hand.read()) == ["head"]

    @pytest.mark.promise("B3", "H1")
    async def test_a_follower_that_was_started_is_not_parked(self, store: Store, add: Add) -> None:
        await add(*(event(name, "k") for name in ("head", "started", "follower")))
        hand = await Hand(store).take()
        head, started, follower = await hand.read()
        await hand.settle(starts=[started])
        await hand.fail(head, delay=FAR)
        await hand.settle(parked=[started, follower])
        assert [(r.id, r.state) for r in await hand.read()] == [("started", "processing")]

    @pytest.mark.req("S2.4")
    @pytest.mark.promise("G7", "B6")
    async def test_a_buried_head_lets_its_key_go_on(self, store: Store, add: Add) -> None:
        await add(*(event(name, "k") for name in ("head", "1", "2")))
        hand = await Hand(store).take()
        await hand.fail(await hand.only("head"))
        await hand.settle(parked=await hand.read())
        await hand.stage()
        await hand.bury(await hand.only("head"))
        assert [(r.id, r.barrier) for r in await hand.read()] == [("1", None), ("2", None)]

    @pytest.mark.promise("G4", "B1")
    async def test_a_replayed_event_that_fails_does_not_let_its_key_pass_the_one_that_waits(
        self, store: Store, add: Add
    ) -> None:
        await add(*(event(name, "k") for name in ("dead", "waiting", "follower")))
        hand = await Hand(store).take()
        await hand.bury(await hand.only("dead"))
        await hand.fail(await hand.only("waiting"), delay=FAR)
        assert await hand.work() == []
        await store.replay(["dead"])
        await hand.fail(await hand.only("dead"))
        assert await hand.work() == ["dead"]
        assert await hand.work() == ["waiting", "follower"]

    @pytest.mark.promise("G4", "B1")
    async def test_a_second_failure_does_not_raise_the_barrier_above_the_first(
        self, store: Store, add: Add
    ) -> None:
        await add(*(event(name, "k") for name in ("first", "second", "third")))
        hand = await Hand(store).take()
        first, second, _ = await hand.read()  # both were in flight
        await hand.fail(first, delay=0.2)
        await hand.fail(second)
        assert [(r.id, r.barrier) for r in await hand.read()] == [("third", first.seq)]
        sent: list[str] = []

        async def all_are_sent() -> bool:
            sent.extend(await hand.work())
            return len(sent) == 3

        await until(all_are_sent)
        assert sent == ["first", "second", "third"]

    @pytest.mark.promise("G4", "B3")
    async def test_a_head_that_fails_in_the_settle_that_ends_the_one_before_it_holds_its_key(
        self, store: Store, add: Add
    ) -> None:
        await add(*(event(name, "k") for name in ("1", "2", "3")))
        hand = await Hand(store).take()
        first, second, _ = await hand.read()
        await hand.fail(first)
        await hand.stage()
        first = await hand.only("1")
        await hand.settle(done=[first], failed=[FailedOutcome(second, 1, FAR, "boom")])
        assert [(r.id, r.barrier) for r in await hand.read()] == [("3", second.seq)]

    @pytest.mark.req("S4.6")
    @pytest.mark.promise("G4", "B3", "B5")
    async def test_a_long_queue_drains_in_order_with_new_arrivals_and_a_second_failure(
        self, store: Store, add: Add
    ) -> None:
        written = [f"{n:04}" for n in range(1_200)]
        await add(*(event(name, "k") for name in written))
        hand = await Hand(store).take()
        sent = await hand.work(failing={"0000"})
        assert sent == []
        while await hand.read():  # all followers are parked
            await hand.settle(parked=await hand.read(rows=500))
        more = [f"{n:04}" for n in range(1_200, 1_230)]
        for round_ in range(100):
            if round_ < len(more):
                await add(event(more[round_], "k"))
            sent += await hand.work(failing={"0700"} if round_ < 10 else ())
            if len(sent) == 1_230:
                break
        assert sent == written + more
        assert (await store.stats()).blocked_keys == 0

    @pytest.mark.promise("B3")
    async def test_a_freed_key_comes_back_in_steps(self, store: Store, add: Add) -> None:
        await add(event("head", "k"), *(event(f"{n:04}", "k") for n in range(501)))
        hand = await Hand(store).take()
        await hand.work(failing={"head"})
        await hand.settle(parked=await hand.read())
        assert await hand.work() == ["head"]
        first = await hand.read()
        assert len(first) == 500
        assert {r.barrier for r in first} == {first[-1].seq}
        await hand.settle(done=first[:499])
        assert names(await hand.read()) == ["0499"]
        await hand.settle(done=await hand.read())
        assert [(r.id, r.barrier) for r in await hand.read()] == [("0500", None)]

    @pytest.mark.req("S4.6")
    @pytest.mark.promise("G7", "B3")
    async def test_ten_thousand_followers_of_a_blocked_key_starve_nobody(
        self, store: Store, add: Add
    ) -> None:
        bad, good = keys_of_lane(1, 2)
        await add(event("head", bad), *(event(f"f{n}", bad) for n in range(10_000)))
        await add(event("neighbour", good))
        hand = await Hand(store).take()
        head = (await hand.read(rows=1))[0]
        await hand.fail(head, delay=FAR)
        rounds = 0
        while not await hand.work(rows=500):
            rounds += 1
            assert rounds <= 20
        assert await hand.read() == []
        await add(event("next", good))
        assert names(await hand.read(rows=1)) == ["next"]

    @pytest.mark.promise("B4")
    async def test_mending_frees_a_key_whose_head_has_ended(self, store: Store, add: Add) -> None:
        await add(*(event(name, "k") for name in ("head", "1", "2")))
        hand = await Hand(store).take()
        unaware = await hand.only("head")  # was read before it blocked its key
        await hand.fail(unaware)
        await hand.settle(parked=await hand.read())
        await hand.settle(done=[unaware])
        assert await hand.read() == []
        assert await store.repair_blocks("main", "anna", hand.held, 100) == 1
        assert [(r.id, r.barrier) for r in await hand.read()] == [("1", None), ("2", None)]
        assert await store.repair_blocks("main", "anna", hand.held, 100) == 0

    @pytest.mark.promise("B4")
    async def test_mending_leaves_a_waiting_head_alone(self, store: Store, add: Add) -> None:
        await add(event("head", "k"), event("1", "k"))
        hand = await Hand(store).take()
        await hand.fail(await hand.only("head"))
        await hand.settle(parked=await hand.read())
        assert await store.repair_blocks("main", "anna", hand.held, 100) == 0
        await hand.stage()
        assert await store.repair_blocks("main", "anna", hand.held, 100) == 0
        assert names(await hand.read()) == ["head"]

    @pytest.mark.promise("B4", "G5")
    async def test_a_stale_token_mends_nothing(self, store: Store, add: Add) -> None:
        await add(event("head", "k"), event("1", "k"))
        hand = await Hand(store).take()
        unaware = await hand.only("head")
        await hand.fail(unaware)
        await hand.settle(parked=await hand.read())
        await hand.settle(done=[unaware], keep_done=False)
        fresh = await store.retake("main", "anna", hand.held, FAR)
        assert await store.repair_blocks("main", "anna", hand.held, 100) == 0
        assert await store.repair_blocks("main", "bert", fresh, 100) == 0
        assert await store.repair_blocks("main", "anna", fresh, 100) == 1

    @pytest.mark.promise("B4")
    async def test_mending_goes_in_steps(self, store: Store, add: Add) -> None:
        await add(*(event(f"e{n}", f"k{n}") for n in range(5)))
        hand = await Hand(store).take()
        for record in await hand.read():
            await hand.fail(record)
            await hand.settle(done=[record])
        assert (await store.stats()).blocked_keys == 5
        assert await store.repair_blocks("main", "anna", hand.held, 3) == 3
        assert await store.repair_blocks("main", "anna", hand.held, 3) == 2
        assert (await store.stats()).blocked_keys == 0
