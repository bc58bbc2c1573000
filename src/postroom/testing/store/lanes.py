"""The contract of leases and members (rules L1 to L5)."""

from __future__ import annotations

import asyncio

import pytest

from postroom.lookup import Filter
from postroom.settlement import DeadOutcome, FailedOutcome
from postroom.store import Lease, Member, Store
from postroom.testing.store.tools import (
    ALL,
    FAR,
    Add,
    Another,
    Hand,
    SetBack,
    event,
    names,
    until,
)

ANNA = Member("anna", healthy=True, name="a host")
BERT = Member("bert", healthy=False)
GONE = -1.0
"""A lease of this many seconds has expired before it began, on the store's own clock."""


class LaneContract:
    """Ownership of lanes, and its visibility to other relays."""

    async def test_a_stream_has_64_free_lanes_at_first(self, store: Store) -> None:
        membership = await store.heartbeat("main", ANNA, FAR, {})
        assert [lease.lane for lease in membership.leases] == list(range(64))
        assert {(lease.owner, lease.live) for lease in membership.leases} == {(None, False)}

    @pytest.mark.req("S2.3", "S4.7")
    @pytest.mark.promise("G5", "L1")
    async def test_a_lane_has_one_owner(self, store: Store, another: Another) -> None:
        other = await another()
        anna = await store.take("main", "anna", [1, 2, 3], FAR)
        bert = await other.take("main", "bert", [2, 3, 4], FAR)
        assert sorted(anna) == [1, 2, 3]
        assert sorted(bert) == [4]

    @pytest.mark.req("S2.3", "S4.7")
    @pytest.mark.promise("G5", "L1")
    async def test_takers_at_the_same_moment_share_out_the_lanes(
        self, store: Store, another: Another
    ) -> None:
        stores = [store, await another(), await another()]
        taken = await asyncio.gather(
            *(s.take("main", f"relay-{n}", ALL, FAR) for n, s in enumerate(stores))
        )
        assert sorted(lane for lanes in taken for lane in lanes) == list(range(64))

    async def test_its_owner_cannot_take_a_live_lane_twice(self, store: Store) -> None:
        await store.take("main", "anna", [7], FAR)
        assert await store.take("main", "anna", [7], FAR) == {}

    @pytest.mark.promise("L1")
    async def test_every_take_raises_the_token(self, store: Store) -> None:
        first = await store.take("main", "anna", [7], GONE)
        second = await store.take("main", "anna", [7], GONE)
        third = await store.take("main", "bert", [7], FAR)
        assert first[7] < second[7] < third[7]

    @pytest.mark.req("S2.3")
    @pytest.mark.promise("G5")
    async def test_an_expired_lane_can_be_taken(self, store: Store, another: Another) -> None:
        await store.take("main", "anna", [7, 8], GONE)
        assert sorted(await (await another()).take("main", "bert", [7, 8], FAR)) == [7, 8]

    @pytest.mark.req("S2.3")
    @pytest.mark.promise("G5")
    async def test_a_lease_runs_out_on_the_stores_clock(
        self, store: Store, another: Another
    ) -> None:
        other = await another()
        await store.take("main", "anna", [7], 0.05)
        await until(lambda: other.take("main", "bert", [7], FAR))
        membership = await store.leases("main")
        assert membership.leases[7] == Lease(7, "bert", 2, live=True)

    @pytest.mark.promise("L1")
    async def test_a_beat_renews_what_is_held(self, store: Store) -> None:
        held = await store.take("main", "anna", [7, 8], GONE)
        membership = await store.heartbeat("main", ANNA, FAR, {7: held[7]})
        assert membership.leases[7] == Lease(7, "anna", held[7], live=True)
        assert not membership.leases[8].live
        assert await store.take("main", "bert", [7, 8], FAR) == {8: held[8] + 1}

    @pytest.mark.promise("L6")
    async def test_a_beat_says_which_lanes_it_has_renewed(self, store: Store) -> None:
        held = await store.take("main", "anna", [7, 8, 9], FAR)
        await store.release("main", "anna", {8: held[8]})
        await store.take("main", "bert", [8], FAR)
        assert (await store.heartbeat("main", ANNA, FAR, held)).renewed == {7, 9}
        assert (await store.heartbeat("main", ANNA, FAR, {})).renewed == set()
        assert (await store.leases("main")).renewed == set()

    @pytest.mark.promise("G5", "L1")
    async def test_a_beat_renews_no_lane_of_another_or_under_an_old_token(
        self, store: Store
    ) -> None:
        old = await store.take("main", "anna", [7, 8], GONE)
        await store.take("main", "bert", [7], FAR)
        await store.take("main", "anna", [8], GONE)
        membership = await store.heartbeat("main", ANNA, FAR, old)
        assert membership.leases[7] == Lease(7, "bert", 2, live=True)
        assert membership.leases[8] == Lease(8, "anna", 2, live=False)

    @pytest.mark.promise("L4")
    async def test_a_member_without_lanes_is_seen(self, store: Store, another: Another) -> None:
        await store.heartbeat("main", ANNA, FAR, {})
        membership = await (await another()).heartbeat("main", BERT, FAR, {})
        assert membership.members == (ANNA, BERT)

    @pytest.mark.promise("L4")
    async def test_a_member_tells_whether_it_is_healthy(self, store: Store) -> None:
        await store.heartbeat("main", ANNA, FAR, {})
        membership = await store.heartbeat("main", ANNA._replace(healthy=False), FAR, {})
        assert membership.members == (Member("anna", healthy=False, name="a host"),)

    @pytest.mark.promise("L4")
    async def test_a_member_that_stopped_beating_is_not_seen(self, store: Store) -> None:
        await store.heartbeat("main", ANNA, GONE, {})
        membership = await store.heartbeat("main", BERT, FAR, {})
        assert membership.members == (BERT,)

    async def test_looking_changes_nothing(self, store: Store) -> None:
        await store.heartbeat("main", ANNA, FAR, {})
        held = await store.take("main", "anna", [7], FAR)
        first = await store.leases("main")
        assert first == await store.leases("main")
        assert first.members == (ANNA,)
        assert first.leases[7] == Lease(7, "anna", held[7], live=True)
        assert first.leases[8] == Lease(8, None, 0, live=False)

    @pytest.mark.promise("L4")
    async def test_a_released_lane_is_free_at_once(self, store: Store) -> None:
        held = await store.take("main", "anna", [7, 8], FAR)
        await store.release("main", "anna", {7: held[7]})
        assert sorted(await store.take("main", "bert", [7, 8], FAR)) == [7]

    @pytest.mark.promise("G5")
    async def test_a_stale_token_releases_nothing(self, store: Store) -> None:
        old = await store.take("main", "anna", [7], FAR)
        new = await store.retake("main", "anna", old, FAR)
        await store.release("main", "anna", old)
        await store.release("main", "bert", new)
        assert (await store.leases("main")).leases[7] == Lease(7, "anna", new[7], live=True)

    @pytest.mark.promise("L4")
    async def test_who_leaves_frees_its_lanes_and_is_gone(self, store: Store) -> None:
        await store.heartbeat("main", ANNA, FAR, {})
        await store.heartbeat("main", BERT, FAR, {})
        await store.take("main", "anna", [7, 8], FAR)
        await store.take("main", "bert", [9], FAR)
        await store.leave("main", "anna")
        membership = await store.leases("main")
        assert membership.members == (BERT,)
        assert [lease.lane for lease in membership.leases if lease.live] == [9]

    @pytest.mark.promise("L5")
    async def test_a_retake_gives_a_new_token_and_a_new_lease(self, store: Store) -> None:
        held = await store.take("main", "anna", [7, 8], FAR)
        again = await store.retake("main", "anna", held, FAR)
        assert again == {7: held[7] + 1, 8: held[8] + 1}

    @pytest.mark.promise("L5")
    async def test_a_retake_under_an_old_token_or_of_another_owner_takes_nothing(
        self, store: Store
    ) -> None:
        old = await store.take("main", "anna", [7], FAR)
        new = await store.retake("main", "anna", old, FAR)
        assert await store.retake("main", "anna", old, FAR) == {}
        assert await store.retake("main", "bert", new, FAR) == {}

    @pytest.mark.promise("R5")
    async def test_streams_have_lanes_and_members_of_their_own(self, store: Store) -> None:
        await store.heartbeat("main", ANNA, FAR, {})
        await store.take("main", "anna", ALL, FAR)
        membership = await store.heartbeat("other", BERT, FAR, {})
        assert membership.members == (BERT,)
        assert len(await store.take("other", "bert", ALL, FAR)) == 64


class ClockContract:
    """The store's clock is set back, or it fails over to a host whose clock is behind."""

    LEASE = 60.0

    @pytest.mark.req("S2.3")
    @pytest.mark.promise("L1")
    async def test_lanes_of_the_dead_are_free_though_the_clock_was_set_back(
        self, store: Store, another: Another, set_back: SetBack
    ) -> None:  # E-6, T-B1: they stayed live for as long as the clock was set back
        other = await another()
        held = await store.take("main", "anna", [7, 8], self.LEASE)
        await store.heartbeat("main", ANNA, self.LEASE, held)
        await set_back(3_600.0)
        membership = await other.heartbeat("main", BERT, self.LEASE, {})
        assert membership.members == (BERT,)
        assert [lease.lane for lease in membership.leases if lease.live] == []
        assert not (await store.leases("main")).leases[7].live
        assert await other.take("main", "bert", [7, 8], self.LEASE) == {7: 2, 8: 2}
        assert (await store.leases("main")).leases[7] == Lease(7, "bert", 2, live=True)

    @pytest.mark.promise("L1")
    async def test_who_is_alive_is_seen_again_with_its_next_beat(
        self, store: Store, another: Another, set_back: SetBack
    ) -> None:
        other = await another()
        held = await store.take("main", "anna", [7], self.LEASE)
        await store.heartbeat("main", ANNA, self.LEASE, held)
        await set_back(3_600.0)
        membership = await store.heartbeat("main", ANNA, self.LEASE, held)
        assert membership.members == (ANNA,)
        assert membership.leases[7] == Lease(7, "anna", held[7], live=True)
        assert await other.take("main", "bert", [7], self.LEASE) == {}

    @pytest.mark.promise("L1")
    async def test_a_step_back_of_less_than_a_lease_takes_no_lane_away(
        self, store: Store, another: Another, set_back: SetBack
    ) -> None:
        other = await another()
        held = await store.take("main", "anna", [7], self.LEASE)
        await set_back(self.LEASE / 2)
        assert (await other.leases("main")).leases[7] == Lease(7, "anna", held[7], live=True)
        assert await other.take("main", "bert", [7], self.LEASE) == {}

    @pytest.mark.promise("L1")
    async def test_a_lease_is_judged_by_its_own_length(
        self, store: Store, another: Another
    ) -> None:
        """Relays of a stream may have different leases: a short one must accept a long one."""
        other = await another()
        held = await store.take("main", "anna", [7], FAR)
        membership = await other.heartbeat("main", BERT, 1.0, {})
        assert membership.leases[7] == Lease(7, "anna", held[7], live=True)
        assert await other.take("main", "bert", [7], 1.0) == {}

    @pytest.mark.promise("G5", "L2")
    async def test_after_a_step_back_the_former_owner_is_fenced(
        self, store: Store, another: Another, set_back: SetBack, add: Add
    ) -> None:
        await add(event("e", "k"))
        anna = await Hand(store).take(ALL, self.LEASE)
        records = await anna.read()
        await set_back(3_600.0)
        bert = await Hand(await another(), "bert").take(ALL, self.LEASE)
        assert len(bert.held) == 64
        assert await anna.settle(done=records) == set()
        assert await bert.settle(done=records) == set(ALL)


class FenceContract:
    """A relay past its lease changes no row (G5)."""

    @pytest.fixture
    async def anna(self, store: Store, add: Add) -> Hand:
        """An owner of all lanes that has read six events and started one of them."""
        await add(*(event(name, name) for name in "abcdef"))
        anna = await Hand(store).take()
        await anna.settle(starts=[await anna.only("e")])
        return anna

    async def all_outcomes(self, anna: Hand) -> set[int]:
        a, b, c, d, e, f = sorted(await anna.read(), key=lambda record: record.id)
        settlement = anna.settlement(
            starts=[a],
            done=[b],
            failed=[FailedOutcome(c, 1, 0.0, "boom")],
            dead=[DeadOutcome(d, 1, "boom")],
            returned=[e],
            parked=[f],
        )
        return await anna.store.settle(settlement)

    @pytest.mark.req("S2.3")
    @pytest.mark.promise("G5", "L2", "L3")
    async def test_a_stale_token_settles_nothing(self, store: Store, anna: Hand) -> None:
        before = await store.find(Filter())
        await store.retake("main", "anna", anna.held, FAR)
        assert await self.all_outcomes(anna) == set()
        assert await store.find(Filter()) == before

    @pytest.mark.req("S2.3")
    @pytest.mark.promise("G5", "L2", "L3")
    async def test_an_expired_lease_settles_nothing(self, store: Store, anna: Hand) -> None:
        before = await store.find(Filter())
        await store.heartbeat("main", ANNA, GONE, anna.held)
        assert await self.all_outcomes(anna) == set()
        assert await store.find(Filter()) == before

    @pytest.mark.req("S2.3", "S4.7")
    @pytest.mark.promise("G5", "L2", "L3")
    async def test_the_former_owner_settles_nothing(
        self, store: Store, anna: Hand, another: Another
    ) -> None:
        before = await store.find(Filter())
        await store.heartbeat("main", ANNA, GONE, anna.held)
        bert = await Hand(await another(), "bert").take()
        assert await self.all_outcomes(anna) == set()
        assert await store.find(Filter()) == before
        assert await bert.settle(done=await bert.read()) == set(ALL)

    @pytest.mark.promise("G5", "L2")
    async def test_a_thief_of_the_token_settles_nothing(self, store: Store, anna: Hand) -> None:
        before = await store.find(Filter())
        thief = Hand(store, "bert")
        thief.held = anna.held
        assert await self.all_outcomes(thief) == set()
        assert await store.find(Filter()) == before

    @pytest.mark.promise("G5", "L3")
    async def test_of_partly_lost_lanes_only_the_others_are_settled(
        self, store: Store, anna: Hand
    ) -> None:
        records = await anna.read()
        lost = records[0].lane
        await store.release("main", "anna", {lost: anna.held[lost]})
        await store.take("main", "bert", [lost], FAR)
        assert await anna.settle(done=records) == set(ALL) - {lost}
        left = await anna.read()
        assert names(left) == [r.id for r in records if r.lane == lost]

    @pytest.mark.promise("L5")
    async def test_after_a_retake_only_the_new_token_settles(
        self, store: Store, anna: Hand
    ) -> None:
        records = await anna.read()
        old = anna.settlement(done=records)
        anna.held = await store.retake("main", "anna", anna.held, FAR)
        assert await store.settle(old) == set()
        assert len(await anna.read()) == 6
        assert await anna.settle(done=records) == set(ALL)
        assert await anna.read() == []
