"""The memory store keeps the contract of stores."""

from __future__ import annotations

import pytest

from postroom.store import Capabilities
from postroom.stores.memory import MemoryStore
from postroom.testing.store import StoreContract


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
