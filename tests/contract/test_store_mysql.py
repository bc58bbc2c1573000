"""The MySQL store keeps the contract of stores, on MariaDB."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from postroom.store import Capabilities
from postroom.testing.store import StoreContract
from postroom.testing.store_flaws import FlawContract
from tests.contract.mysql_database import own_database


class TestMysqlStore(FlawContract, StoreContract):
    capabilities = Capabilities(notify=False)
    odd_id = "id = x'6fff'"
    flaws = {
        "type = x'61ff62'": "type is not UTF-8 text: a\\xffb",
        "topic = x'ff'": "topic is not UTF-8 text",
        "correlation_id = x'ff'": "correlation_id is not UTF-8 text",
        "headers = 'no json', size = size + 7": "headers are not a JSON object of text: 'no json'",
        "headers = '{\"retries\":1}', size = size + 13": "headers are not a JSON object of text",
        "causation_path = '[[\"a\"]]'": "causation_path is not a JSON list of text pairs",
        "occurred_at = '0000-00-00'": "occurred_at is NULL",
        "created_at = '0000-00-00'": "created_at is NULL",
    }
    waiting = ("next_attempt_at = '0000-00-00'", "next_attempt_at = '9999-12-31'")
    odd_ids = {"id = x'ff62'": "id is not UTF-8 text: \\xffb"}

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

    @pytest.fixture
    def spoil(self, database):
        async def spoil(event_id, flaw):
            database.run(
                "SET sql_mode = ''",  # zero dates, as servers with an old configuration allow
                f"UPDATE postroom_outbox SET {flaw} WHERE id = '{event_id}'",
            )

        return spoil

    @pytest.fixture
    def set_back(self, database):
        async def set_back(seconds):
            for table in ("postroom_lease", "postroom_member"):
                step = round(seconds * 1_000_000)
                database.run(f"UPDATE {table} SET until = until + INTERVAL {step} MICROSECOND")

        return set_back
