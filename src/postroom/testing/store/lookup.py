"""The contract of operators' questions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroom.event import Event
from postroom.lookup import Filter, Standing
from postroom.record import State
from postroom.store import Store
from postroom.testing.store.tools import (
    FAR,
    Add,
    Hand,
    event,
    names,
    until,
)


class LookupContract:
    """Counting and finding."""

    async def test_what_is_not_there_is_none(self, store: Store) -> None:
        assert await store.get("nothing") is None
        assert await store.find(Filter()) == []
        assert await store.streams() == []
        assert await store.look_up([]) == {}
        assert await store.look_up(["nothing"]) == {}

    async def test_the_keys_of_what_is_unfinished(self, store: Store, add: Add) -> None:
        later = datetime.now(UTC) + timedelta(hours=1)
        await add(*(event(name, name) for name in ("a", "b", "c", "d")), event("d-2", "d"))
        await add(event("elsewhere", stream="other"), event("late", "e", available_at=later))
        hand = await Hand(store).take()
        r = {record.id: record for record in await hand.read()}
        await hand.settle(done=[r["a"]], starts=[r["c"]])
        await hand.bury(r["b"])
        await hand.fail(r["d"], delay=FAR)
        await hand.settle(parked=[await hand.only("d-2")])
        late = await store.get("late")
        assert late is not None
        wanted = [r["c"].key_hash, r["d"].key_hash, r["d"].key_hash, late.key_hash]
        assert sorted(await store.open_keys("main", 9)) == sorted(wanted)
        assert len(await store.open_keys("main", 3)) == 3
        assert await store.open_keys("nothing", 9) == []

    async def test_events_are_looked_up_by_their_ids(self, store: Store, add: Add) -> None:
        await add(event("a", "a"), event("b", "b"), event("c", "c", stream="other"))
        await store.bury(["b"], "gone")
        assert await store.look_up(["b", "a", "c", "x", "a"]) == {
            "a": Standing("main", "pending"),
            "b": Standing("main", "dead"),
            "c": Standing("other", "pending"),
        }

    @pytest.mark.req("S2.7", "S4.9")
    async def test_stats_count_by_state(self, store: Store, add: Add) -> None:
        await add(*(event(name, name) for name in ("a", "b", "c", "d", "e", "f")))
        await add(event("behind d", "d"), event("elsewhere", stream="other"))
        hand = await Hand(store).take()
        r = {record.id: record for record in await hand.read()}
        await hand.settle(done=[r["a"], r["b"]], starts=[r["c"]])
        await hand.fail(r["d"], delay=FAR)
        await hand.bury(r["e"])
        await hand.settle(parked=[await hand.only("behind d")])
        stats = await store.stats("main")
        assert stats.counts == {
            "pending": 2, "processing": 1, "done": 2, "failed": 1, "dead": 1,
            "expired": 0, "cancelled": 0,
        }  # fmt: skip
        assert stats.blocked_keys == 1
        other = await store.stats("other")
        assert (other.counts["pending"], sum(other.counts.values()), other.blocked_keys) == (
            1,
            1,
            0,
        )
        everything = await store.stats()
        assert everything.counts["pending"] == 3
        assert everything.counts["done"] == 2
        assert everything.blocked_keys == 1

    @pytest.mark.req("S2.7", "S4.9")
    async def test_stats_of_all_streams_are_added_up(self, store: Store, add: Add) -> None:
        now = datetime.now(UTC)
        for stream in ("main", "other"):
            name = f"{stream} {{}}".format
            await add(
                event(name("pending"), "p", stream=stream),
                event(name("processing"), "s", stream=stream),
                event(name("done"), "d", stream=stream),
                event(name("failed"), "f", stream=stream),
                event(name("dead"), "b", stream=stream),
                event(name("expired"), "e", stream=stream, deliver_by=now - timedelta(days=1)),
                event(name("cancelled"), "c", stream=stream, available_at=now + timedelta(days=1)),
            )
            hand = await Hand(store, stream=stream).take()
            r = {record.id: record for record in await hand.read()}
            await hand.settle(
                starts=[r[name("processing")]],
                done=[r[name("done")]],
                expired=[r[name("expired")]],
            )
            await hand.fail(r[name("failed")], delay=FAR)
            await hand.bury(r[name("dead")])
            assert await store.cancel([name("cancelled")]) == 1
        for stream in ("main", "other"):
            one = await store.stats(stream)
            assert (one.counts, one.blocked_keys) == (dict.fromkeys(State, 1), 1)
        both = await store.stats()
        assert (both.counts, both.blocked_keys) == (dict.fromkeys(State, 2), 2)

    @pytest.mark.req("S2.7")
    async def test_the_lag_is_the_age_of_the_oldest_that_could_go(
        self, store: Store, add: Add
    ) -> None:
        assert (await store.stats("main")).lag_seconds == 0
        await add(event("e", "k"))
        hand = await Hand(store).take()

        async def lags() -> bool:
            return (await store.stats("main")).lag_seconds >= 0.02

        await until(lags)
        await hand.fail(await hand.only("e"), delay=FAR)
        assert (await store.stats("main")).lag_seconds == 0

    @pytest.mark.req("S1.9")
    async def test_find_filters_and_goes_page_by_page(self, store: Store, add: Add) -> None:
        await add(
            Event("order.created", id="1", key="k", topic="orders"),
            Event("order.paid", id="2", key="k", topic="money"),
            Event("order.created", id="3", key="m", topic="orders"),
            Event("order.created", id="4", key="k", topic="orders", stream="other"),
        )
        assert names(await store.find(Filter())) == ["1", "2", "3", "4"]
        assert names(await store.find(Filter(stream="main"))) == ["1", "2", "3"]
        assert names(await store.find(Filter(type="order.created"))) == ["1", "3", "4"]
        assert names(await store.find(Filter(topic="money"))) == ["2"]
        assert names(await store.find(Filter(key="k", stream="other"))) == ["4"]
        page = await store.find(Filter(limit=3))
        assert names(page) == ["1", "2", "3"]
        assert names(await store.find(Filter(after_seq=page[-1].seq, limit=3))) == ["4"]

    @pytest.mark.req("S1.9")
    async def test_find_by_state(self, store: Store, add: Add) -> None:
        await add(*(event(name, name) for name in ("1", "2", "3", "4", "5", "6")))
        hand = await Hand(store).take()
        r = {record.id: record for record in await hand.read()}
        await hand.settle(done=[r["2"]], starts=[r["3"]])
        await hand.fail(r["4"])
        await hand.bury(r["5"])
        await hand.bury(r["6"])
        found = {state: names(await store.find(Filter(state=state))) for state in State}
        assert found == {
            State.PENDING: ["1"],
            State.DONE: ["2"],
            State.PROCESSING: ["3"],
            State.FAILED: ["4"],
            State.DEAD: ["5", "6"],
            State.EXPIRED: [],
            State.CANCELLED: [],
        }
        dead = Filter(state=State.DEAD, stream="main", after_seq=r["5"].seq)
        assert names(await store.find(dead)) == ["6"]

    async def test_streams_are_those_with_events_or_leases(self, store: Store, add: Add) -> None:
        await add(event("a", stream="b-ready"), event("b", stream="c-dead"), event("c", stream="d"))
        later = datetime.now(UTC) + timedelta(hours=1)
        await add(event("later", stream="e-waiting", available_at=later))
        await store.take("a-leased", "anna", [1], FAR)
        await store.bury(["b"], "dead")
        hand = await Hand(store, stream="d").take()
        await hand.fail(await hand.only("c"), delay=FAR)
        assert await store.streams() == ["a-leased", "b-ready", "c-dead", "d", "e-waiting"]

    @pytest.mark.req("S3.2")
    async def test_prune_deletes_old_done_events_only_and_in_steps(
        self, store: Store, add: Add
    ) -> None:
        await add(*(event(f"e{n}", f"k{n}") for n in range(8)))
        hand = await Hand(store).take()
        r = {record.id: record for record in await hand.read()}
        for n in range(5):
            await hand.settle(done=[r[f"e{n}"]])
        await hand.bury(r["e5"])
        await hand.fail(r["e6"])
        assert await store.prune(FAR, 100) == 0
        assert await store.prune(-1.0, 2) == 2
        assert names(await store.find(Filter())) == ["e2", "e3", "e4", "e5", "e6", "e7"]
        assert await store.prune(-1.0, 100) == 3
        assert await store.prune(-1.0, 100) == 0
        assert names(await store.find(Filter())) == ["e5", "e6", "e7"]
