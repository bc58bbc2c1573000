"""The scenes on an SQLite file, each relay with connections of its own."""

from __future__ import annotations

import pytest

from tests.scenario.failures import FailureScenes
from tests.scenario.handling import HandlerScenes
from tests.scenario.life import LifeScenes
from tests.scenario.place import SqlitePlace
from tests.scenario.sharing import SharingScenes


@pytest.fixture
async def place(tmp_path):
    made = SqlitePlace(tmp_path / "app.db")
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
