"""The contract of deleting dead letters: by an operator, and by age."""

from __future__ import annotations

import asyncio

import pytest

from postroom.commands import AuditEntry
from postroom.event import Event
from postroom.lookup import Filter
from postroom.model.clock import host_microseconds
from postroom.record import State
from postroom.store import PrunedDead, Store
from postroom.testing.store.tools import ALL, Add, Another, Hand, event, names, needs

_MINUTE = 60_000_000


class PurgeContract:
    """`purge` and `prune_dead`."""

    @pytest.mark.promise("G7", "L7")
    async def test_a_purge_deletes_only_what_was_never_sent(self, store: Store, add: Add) -> None:
        await add(*(event(name, name) for name in ("dead", "done", "failed", "pending", "too")))
        hand = await Hand(store).take()
        await hand.bury(await hand.only("dead"))
        await hand.bury(await hand.only("too"))
        await hand.settle(done=[await hand.only("done")])
        await hand.fail(await hand.only("failed"), delay=3_600)
        ids = ["pending", "dead", "failed", "done", "no such", "too"]
        assert await store.purge(ids, by="anna") == 2
        assert names(await store.find(Filter())) == ["done", "failed", "pending"]
        assert await store.purge(ids, by="anna") == await store.purge([]) == 0
        assert [entry._replace(at_us=0) for entry in await store.audit_log(10)] == [
            AuditEntry("anna", "purge", 2, "dead, too")
        ]
        assert names(await hand.read()) == ["pending"]
        assert await hand.settle(done=await hand.read()) == set(ALL)  # the lanes stay

    @pytest.mark.promise("G7")
    async def test_dead_letters_are_found_by_when_they_died(self, store: Store, add: Add) -> None:
        await add(*(event(name, "k") for name in ("dead", "done", "pending")))
        hand = await Hand(store).take()
        await hand.bury(await hand.only("dead"))
        await hand.settle(done=[await hand.only("done")])
        now = host_microseconds()
        for wanted in (Filter(), Filter(key="k"), Filter(state=State.DEAD)):
            later = wanted._replace(settled_before_us=now + 10 * _MINUTE)
            expected = ["dead"] if wanted.state else ["dead", "done"]
            assert names(await store.find(later)) == expected
            assert await store.find(wanted._replace(settled_before_us=now - 10 * _MINUTE)) == []

    @pytest.mark.promise("G7")
    async def test_old_dead_letters_are_pruned_page_by_page(self, store: Store, add: Add) -> None:
        await add(
            *(event(str(n), str(n)) for n in range(5)),
            event("live", "live"),
            event("other", "other", stream="other"),
            event("done", "done"),
        )
        assert await store.prune_dead("main", -60.0, 0, 10) == PrunedDead(0, None)
        await store.bury([*map(str, range(5)), "other"], "by hand")
        hand = await Hand(store).take()
        await hand.settle(done=[await hand.only("done")])
        assert await store.prune_dead("main", 3_600.0, 0, 10) == PrunedDead(0, None)
        first = await store.prune_dead("main", 3_600.0, 0, 2)  # looked at, and young
        assert first.removed == 0
        assert first.next_seq is not None
        second = await store.prune_dead("main", -60.0, first.next_seq, 2)
        assert second.removed == 2
        assert second.next_seq is not None
        assert await store.prune_dead("main", -60.0, second.next_seq, 2) == PrunedDead(1, None)
        left = ["0", "1", "live", "other", "done"]
        assert names(await store.find(Filter())) == left

    @needs("transactions")
    @pytest.mark.promise("B6")
    async def test_a_number_that_consumers_wait_for_is_not_pruned(
        self, store: Store, add: Add
    ) -> None:
        await add(event("buried", "k"), event("skipped", "k"), strict=True)
        await store.bury(["buried"], "by hand")
        await store.skip("skipped", "by hand")
        assert await store.prune_dead("main", -60.0, 0, 10) == PrunedDead(1, None)
        assert await store.replay(["buried"]) == 1

    @needs("transactions")
    @pytest.mark.promise("L7", "W9")
    async def test_a_purge_and_a_replay_at_the_same_moment(
        self, store: Store, another: Another, add: Add
    ) -> None:
        """One of them gets the event; the number of a strict copy is never lost."""
        other = await another()
        rounds = 8
        ids = [str(n) for n in range(rounds)]
        await add(*(Event("t", id=name, key="k") for name in ids), strict=True)
        await store.bury(ids, "by hand")
        numbers = rounds
        for name in ids:
            purged, replayed = await asyncio.gather(
                store.purge([name]), other.replay([name], new_id=True)
            )
            assert purged == 1
            numbers += replayed
        assert sorted(r.kseq or 0 for r in await store.find(Filter())) == list(
            range(rounds + 1, numbers + 1)
        )
