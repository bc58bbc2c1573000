"""The scenes of blocks and sharing on a MongoDB without transactions."""

from __future__ import annotations

import pytest

from tests.scenario.failures import FailureScenes
from tests.scenario.mongo_place import StandalonePlace
from tests.scenario.sharing import SharingScenes


@pytest.fixture
async def place(mongo_standalone_url):
    made = StandalonePlace(mongo_standalone_url)
    await made.open()
    yield made
    await made.close()


class TestFailures(FailureScenes):
    test_a_strict_event_blocks_until_it_is_skipped_with_a_marker = None  # needs transactions


class TestSharing(SharingScenes):
    pass
