"""The scenes on a MariaDB server, each relay with connections of its own."""

from __future__ import annotations

import pytest

from tests.contract.mysql_database import own_database
from tests.scenario.failures import FailureScenes
from tests.scenario.handlers import HandlerScenes
from tests.scenario.life import LifeScenes
from tests.scenario.mysql_place import MysqlPlace
from tests.scenario.sharing import SharingScenes


@pytest.fixture
async def place(mariadb_url):
    with own_database(mariadb_url) as database:
        made = MysqlPlace(database)
        await made.open()
        yield made
        await made.close()


class TestLife(LifeScenes):
    # MySQL tells nobody of commits: without a kick an event waits for the poll.
    test_without_a_kick_or_a_poll_the_store_says_so = None


class TestFailures(FailureScenes):
    pass


class TestHandlers(HandlerScenes):
    pass


class TestSharing(SharingScenes):
    pass
