"""The scenes on a MongoDB replica set of one, each relay with a client of its own."""

from __future__ import annotations

import pytest

from tests.scenario.failures import FailureScenes
from tests.scenario.handling import HandlerScenes
from tests.scenario.life import LifeScenes
from tests.scenario.mongo_place import MongoPlace
from tests.scenario.sharing import SharingScenes


@pytest.fixture
async def place(mongo_url):
    made = MongoPlace(mongo_url)
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
