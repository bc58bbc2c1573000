"""The contract of searches: by index, or within bounds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from postroom.errors import ConfigError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.model.clock import host_microseconds
from postroom.record import State
from postroom.search import CORRELATION, Outline, Reach
from postroom.store import Store
from postroom.testing.store.tools import FAR, Add, Hand, event, names

_DAY = 86_400_000_000


def caused(name: str, correlation: str | None, by: str | None, key: str | None = None) -> Event:
    """Make an event with a cause."""
    return event(name, key, correlation_id=correlation, causation_id=by)


def ids(outlines: Sequence[Outline]) -> list[str]:
    """Return the ids, in order."""
    return [one.id for one in outlines]


class SearchContract:
    """Correlation and causation, with and without their index; bounds."""

    async def test_an_optional_index_is_created_and_dropped_once(self, store: Store) -> None:
        search = store.search
        await search.set_index(CORRELATION, present=False)
        assert await search.indexes() == frozenset()
        assert await search.set_index(CORRELATION, present=True)
        assert await search.indexes() == {CORRELATION}
        assert not await search.set_index(CORRELATION, present=True)
        assert await search.set_index(CORRELATION, present=False)
        assert not await search.set_index(CORRELATION, present=False)
        assert await search.indexes() == frozenset()
        with pytest.raises(ConfigError, match="no optional index 'nothing'; known: correlation"):
            await search.set_index("nothing", present=True)

    async def test_events_of_a_correlation_or_causation_id(self, store: Store, add: Add) -> None:
        search = store.search
        await search.set_index(CORRELATION, present=False)
        await add(event("a", "k"), caused("b", "a", "a", "k"), caused("c", "a", "b"))
        await add(caused("d", "x", "a"), caused("e", "a", "b", "k"))
        by_correlation, by_cause = Filter(correlation_id="a"), Filter(causation_id="a")
        for unbounded in (by_correlation, by_cause):
            with pytest.raises(ConfigError, match="postroom migrate --index correlation"):
                await store.find(unbounded)
            assert (await search.reach(unbounded, 3)).rows == 3  # looked at, not found
        with pytest.raises(ConfigError, match="postroom migrate --index correlation"):
            await search.outline("causation_id", "a", 9)
        end = (await search.reach(Filter(), 4)).seq  # up to d
        for last in (end, None, end):
            if last is None:
                assert await search.set_index(CORRELATION, present=True)
            wanted = by_correlation._replace(until_seq=last)
            rest = [] if last else ["e"]
            assert names(await store.find(wanted)) == ["b", "c", *rest]
            assert names(await store.find(wanted._replace(key="k"))) == ["b", *rest]
            assert names(await store.find(wanted._replace(causation_id="b"))) == ["c", *rest]
            assert names(await store.find(by_cause._replace(until_seq=last))) == ["b", "d"]
            b = (await store.find(wanted._replace(limit=1)))[0]
            assert names(await store.find(wanted._replace(after_seq=b.seq))) == ["c", *rest]
        assert await search.reach(by_correlation, 9) == Reach(
            3, (await search.reach(Filter(), 9)).seq
        )
        assert (await search.reach(by_correlation, 2)).rows == 2
        assert ids(await search.outline("correlation_id", "a", 9)) == ["b", "c", "e"]
        assert ids(await search.outline("correlation_id", "a", 2)) == ["b", "c"]
        assert ids(await search.outline("causation_id", "a", 9)) == ["b", "d"]
        assert await search.outline("causation_id", "A", 9) == []

    async def test_outlines_tell_what_became_of_an_event(self, store: Store, add: Add) -> None:
        await add(caused("1", "x", "0", "k"), event("2", "k"), event("3", "k", aggregate_type="o"))
        hand = await Hand(store).take()
        r = {record.id: record for record in await hand.read()}
        await hand.settle(done=[r["1"]])
        await hand.fail(r["2"], delay=FAR)
        newest = await store.search.outline("key", "k", 9)
        assert ids(newest) == ["3", "2", "1"]
        assert ids(await store.search.outline("key", "k", 2)) == ["3", "2"]
        three, two, one = newest
        assert await store.search.outlines(["3", "nothing", "1", "3"]) == [one, three]
        assert await store.search.outlines([]) == []
        assert await store.search.newest(9) == newest
        assert await store.search.newest(2) == [three, two]
        assert one[1:12] == (
            "1", "main", "tested", "outbox_events", "k", None, "x", "0", "done", "over", 0,
        )  # fmt: skip
        assert one.settled_us is not None
        assert one.created_us <= one.settled_us
        assert (two.state, two.stage, two.attempts, two.last_error) == (
            "failed",
            "waiting",
            1,
            "boom",
        )
        assert two.next_attempt_us is not None
        assert (three.aggregate_type, three.state, three.settled_us) == ("o", "pending", None)

    async def test_a_search_is_bounded_by_rows(self, store: Store, add: Add) -> None:
        await add(*(event(f"e{n}", f"k{n % 2}") for n in range(6)))
        await store.bury(["e1", "e3"], "gone")
        every = await store.find(Filter())
        search = store.search
        assert await search.reach(Filter(), 4) == Reach(4, every[3].seq)
        assert await search.reach(Filter(), 7) == Reach(6, every[5].seq)
        assert await search.reach(Filter(after_seq=every[5].seq), 7) == Reach(0, 0)
        assert await search.reach(Filter(type="nothing"), 4) == Reach(4, every[3].seq)
        assert await search.reach(Filter(key="k0"), 2) == Reach(2, every[2].seq)
        assert await search.reach(Filter(state=State.DEAD), 9) == Reach(2, every[3].seq)
        assert await search.reach(Filter(state=State.DONE), 9) == Reach(6, every[5].seq)
        bound = Filter(after_seq=every[0].seq, until_seq=every[4].seq)
        assert await search.reach(bound, 9) == Reach(4, every[4].seq)
        assert names(await store.find(bound)) == ["e1", "e2", "e3", "e4"]
        assert names(await store.find(bound._replace(key="k1"))) == ["e1", "e3"]
        assert names(await store.find(bound._replace(state=State.DEAD))) == ["e1", "e3"]

    async def test_the_newest_first(self, store: Store, add: Add) -> None:
        await store.search.set_index(CORRELATION, present=True)
        await add(*(caused(f"e{n}", "c", None, f"k{n % 2}") for n in range(6)))
        await store.bury(["e1", "e3"], "gone")
        every = await store.find(Filter())
        newest = Filter(newest=True)
        assert names(await store.find(newest)) == ["e5", "e4", "e3", "e2", "e1", "e0"]
        assert names(await store.find(newest._replace(limit=2))) == ["e5", "e4"]
        before = newest._replace(until_seq=every[4].seq - 1, limit=2)
        assert names(await store.find(before)) == ["e3", "e2"]
        assert names(await store.find(newest._replace(after_seq=every[3].seq))) == ["e5", "e4"]
        by_key, dead = newest._replace(key="k1"), newest._replace(state=State.DEAD)
        assert names(await store.find(by_key)) == ["e5", "e3", "e1"]
        assert names(await store.find(by_key._replace(until_seq=every[4].seq))) == ["e3", "e1"]
        assert names(await store.find(dead)) == ["e3", "e1"]
        assert names(await store.find(dead._replace(limit=1))) == ["e3"]
        related = newest._replace(correlation_id="c", after_seq=every[1].seq)
        assert names(await store.find(related)) == ["e5", "e4", "e3", "e2"]
        search = store.search
        assert await search.reach(newest, 4) == Reach(4, every[2].seq)
        assert await search.reach(newest, 9) == Reach(6, every[0].seq)
        assert await search.reach(before, 3) == Reach(3, every[1].seq)
        assert await search.reach(by_key, 2) == Reach(2, every[3].seq)
        assert await search.reach(dead, 9) == Reach(2, every[1].seq)
        assert await search.reach(newest._replace(until_seq=0), 9) == Reach(0, 0)

    async def test_ids_that_begin_with_a_text(self, store: Store, add: Add) -> None:
        await add(*(event(name) for name in ("ab-2", "ab-1", "ab", "aB-1", "ac", "ab_1%", "é-1")))
        search = store.search
        assert await search.ids("ab-", 9) == ["ab-1", "ab-2"]
        assert await search.ids("ab", 9) == ["ab", "ab-1", "ab-2", "ab_1%"]
        assert await search.ids("ab", 2) == ["ab", "ab-1"]
        assert await search.ids("ab_", 9) == ["ab_1%"]
        assert await search.ids("é", 9) == ["é-1"]
        assert await search.ids("%", 9) == []
        assert await search.ids("zz", 9) == []

    async def test_a_time_window_begins_at_a_position(self, store: Store, add: Add) -> None:
        assert names(await store.find(Filter(after_seq=await store.search.position(0)))) == []
        await add(*(event(f"e{n}", f"k{n}") for n in range(9)))
        first, *_, last = await store.find(Filter())
        now = host_microseconds()
        assert await store.search.position(0) <= first.seq
        assert await store.search.position(now - _DAY) <= first.seq
        assert await store.search.position(now) <= first.seq  # times may be out of order
        assert await store.search.position(now + _DAY) > last.seq
