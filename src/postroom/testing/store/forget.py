"""The contract of privacy requests, and of the inboxes of a store."""

from __future__ import annotations

import pytest

from postroom.commands import AuditEntry
from postroom.event import Event
from postroom.lookup import Filter, InboxStats
from postroom.model.clock import host_microseconds
from postroom.store import Store
from postroom.testing.store.tools import FAR, Add, Hand, event, names
from postroom.transaction import Acceptance
from postroom.transactions import resolve

_MINUTE = 60_000_000


class ForgetContract:
    """`forget` and `inboxes`."""

    @pytest.mark.promise("G6", "G7", "L7")
    async def test_finished_events_are_erased_and_repeats_are_still_known(
        self, store: Store, add: Add
    ) -> None:
        await add(
            Event("t", {"mail": "ada"}, id="done", key="ada", correlation_id="ada"),
            *(event(name, name) for name in ("dead", "failed", "pending")),
        )
        hand = await Hand(store).take()
        await hand.settle(done=[await hand.only("done")])
        await hand.bury(await hand.only("dead"))
        await hand.fail(await hand.only("failed"), delay=FAR)
        for consumer in ("a", "b"):
            assert await _accept(store, consumer, "done", "other")
        ids = ["done", "dead", "failed", "pending", "no such"]
        assert await store.forget(ids, "key 12ab", accepted=["done"], by="anna") == 2
        assert names(await store.find(Filter())) == ["failed", "pending"]
        assert await store.forget(ids, "key 12ab", accepted=["done"], by="anna") == 0
        assert await store.forget([], "nothing") == 0
        assert [entry._replace(at_us=0) for entry in await store.audit_log(9)] == [
            AuditEntry("anna", "forget", 2, "key 12ab")
        ]
        for consumer in ("a", "b"):
            assert not await _accept(store, consumer, "done", "other")

    @pytest.mark.promise("I1")
    async def test_the_inboxes_are_listed(self, store: Store) -> None:
        assert await store.inboxes() == []
        await _accept(store, "payments/charge", "1", "2")
        await _accept(store, "audit", "1")
        found = await store.inboxes()
        assert [one._replace(oldest_us=None, newest_us=None) for one in found] == [
            InboxStats("audit", 1, None, 1),
            InboxStats("payments/charge", 2, None, 2),
        ]
        now = host_microseconds()
        assert all(abs((one.oldest_us or 0) - now) < 10 * _MINUTE for one in found)
        assert all((one.newest_us or 0) >= (one.oldest_us or now) for one in found)


async def _accept(store: Store, consumer: str, *ids: str) -> bool:
    async with store.transaction() as tx:
        adapter = resolve(tx, store.tables.qualified)
        return all([await adapter.accept(Acceptance(consumer, each, "t", "ada")) for each in ids])
