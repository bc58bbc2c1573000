"""The scenes on the memory store."""

from __future__ import annotations

import pytest

from tests.scenario.failures import FailureScenes
from tests.scenario.handlers import HandlerScenes
from tests.scenario.life import LifeScenes
from tests.scenario.place import MemoryPlace
from tests.scenario.sharing import SharingScenes


@pytest.fixture
async def place():
    made = MemoryPlace()
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
