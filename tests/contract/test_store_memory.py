"""The memory store keeps the contract of stores."""

from __future__ import annotations

import asyncio

import pytest

from postroom.errors import AutocommitError
from postroom.outbox import Outbox
from postroom.store import Capabilities
from postroom.stores.memory import MemoryStore
from postroom.testing.store import StoreContract
from postroom.testing.store.tools import event, patience
from postroom.transaction import Acceptance


class TestMemoryStore(StoreContract):
    capabilities = Capabilities(shared=False)

    @pytest.fixture
    async def store(self):
        return MemoryStore()

    @pytest.fixture
    async def another(self, store):
        async def another():
            return store

        return another

    @pytest.fixture
    def write(self):
        return lambda store: store.begin()

    @pytest.fixture
    def set_back(self, store):
        async def set_back(seconds):
            now_us = store.now_us
            store.now_us = lambda: now_us() - round(seconds * 1_000_000)

        return set_back


async def test_old_messages_come_oldest_first_and_page_by_page():
    now = 0
    store = MemoryStore(lambda: now)
    for name in "cab":
        now += 1_000_000
        async with store.begin() as tx:
            await tx.accept(Acceptance("billing", name, "t", None))
    now += 60_000_000
    tx = store.begin()
    assert await tx.done_before("billing", 30.0, 2, 0) == ["c", "a"]
    assert await tx.done_before("billing", 30.0, 2, 2) == ["b"]
    assert await tx.done_before("billing", 61.5, 9, 0) == ["c"]
    assert await tx.done_before("other", 30.0, 9, 0) == []


async def test_a_transaction_that_was_aborted_while_it_waited_takes_no_lock():
    store = MemoryStore()
    first, second = store.begin(), store.begin()
    await Outbox().add(first, event("e"))
    waiting = asyncio.ensure_future(Outbox().add(second, event("e")))
    await asyncio.sleep(0)
    second.abort()
    await first.rollback()
    with pytest.raises(AutocommitError):
        await waiting
    async with patience(), store.begin() as third:
        await Outbox().add(third, event("e"))
    assert await store.get("e") is not None
