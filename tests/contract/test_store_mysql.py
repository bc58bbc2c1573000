"""The MySQL store keeps the contract of stores, on MariaDB."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from postroom.store import Capabilities
from postroom.testing.store import StoreContract
from tests.contract.mysql_database import own_database


class TestMysqlStore(StoreContract):
    capabilities = Capabilities(notify=False)

    @pytest.fixture
    def database(self, mariadb_url):
        with own_database(mariadb_url) as database:
            yield database

    @pytest.fixture
    async def another(self, database):
        async with AsyncExitStack() as stack:

            async def another():
                return await stack.enter_async_context(database.store())

            yield another

    @pytest.fixture
    async def store(self, another):
        return await another()

    @pytest.fixture
    def write(self, database):
        return lambda store: database.writing()
