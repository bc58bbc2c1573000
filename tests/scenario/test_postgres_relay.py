"""The scenes on a PostgreSQL server, each relay with connections of its own."""

from __future__ import annotations

import pytest

from tests.scenario.failures import FailureScenes
from tests.scenario.handlers import HandlerScenes
from tests.scenario.life import LifeScenes
from tests.scenario.postgres_place import PostgresPlace, own_schema
from tests.scenario.sharing import SharingScenes


@pytest.fixture
async def place(postgres18_url):
    with own_schema(postgres18_url) as url:
        made = PostgresPlace(url)
        await made.open()
        yield made
        await made.close()


class TestLife(LifeScenes):
    pass


class TestFailures(FailureScenes):
    pass


class TestHandlers(HandlerScenes):
    pass


class TestSharing(SharingScenes):
    pass
