"""The contract of a store's description of itself, and of its inbox."""

from __future__ import annotations

import pytest

from postroom.lookup import Filter
from postroom.model.diagnostics import Finding
from postroom.outbox import Outbox
from postroom.record import LANES
from postroom.store import Store, Tables
from postroom.testing.store.tools import Add, event, names
from postroom.transaction import Acceptance
from postroom.transactions import resolve


class PortContract:
    """Table names, a URL without secrets, findings for the doctor, pruning of the inbox."""

    async def test_what_it_says_of_itself_is_true(self, store: Store) -> None:
        """Its tables are where events go; its URL has a scheme; a check changes nothing."""
        assert isinstance(store.tables, Tables)
        async with store.transaction() as tx:
            await Outbox().within(store.tables).add(tx, event("one"))
        scheme, colon, _ = store.url.partition(":")
        assert (scheme.isalpha(), colon) == (True, ":")
        found = await store.check()
        assert all(isinstance(one, Finding) and one.what and one.fix for one in found)
        assert (await store.stage("main", range(LANES), 100)).ready
        assert list(store.complaints()) == []
        assert names(await store.find(Filter())) == ["one"]

    @pytest.mark.promise("I1", "G6")
    async def test_old_inbox_rows_of_one_consumer_are_forgotten(
        self, store: Store, add: Add
    ) -> None:
        """Except those of events that may come again."""
        await add(event("dead"), event("pending"))
        await store.bury(["dead"], "poison")
        mine, others = ("dead", "pending", "m-1", "m-2"), ("payments", "payments/mail")
        assert await _accept(store, "payments/charge", *mine) == [True] * 4
        for other in others:
            await _accept(store, other, "m-1")
        assert await store.forget_accepted("payments/charge", 3_600.0, ()) == 0
        assert await _accept(store, "payments/charge", "m-1") == [False]
        assert await store.forget_accepted("payments/charge", -60.0, ()) == 2
        assert await _accept(store, "payments/charge", *mine) == [False, False, True, True]
        for other in others:
            assert await _accept(store, other, "m-1") == [False]


async def _accept(store: Store, consumer: str, *ids: str) -> list[bool]:
    async with store.transaction() as tx:
        adapter = resolve(tx, store.tables.qualified)
        return [await adapter.accept(Acceptance(consumer, each, "t", None)) for each in ids]
