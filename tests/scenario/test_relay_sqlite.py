"""The scenes on an SQLite file, each relay with connections of its own."""

from __future__ import annotations

import pytest

from postroom.event import Event
from postroom.observer import Alarm
from tests.scenario.failures import FailureScenes
from tests.scenario.handlers import HandlerScenes
from tests.scenario.life import LifeScenes
from tests.scenario.place import SqlitePlace, until
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
    @pytest.mark.promise("P2", "G7")
    async def test_a_full_disk_is_no_handlers_fault(self, place, handlers, notes):
        room, tries = [1], []

        @handlers.on("paid")
        async def charge(event, tx):
            tries.append(event.id)
            await tx.execute(f"PRAGMA max_page_count = {room[0]}")  # 1: as many as there are
            await tx.execute("CREATE TABLE receipts AS SELECT zeroblob(1000000) AS paper")
            await place.effect(tx, event.id)

        relay = place.relay(handlers, misconfigured_seconds=0.02, observers=[notes])
        async with relay:
            await place.write(Event("paid", id="e1", key="k"))
            await until(lambda: len(tries) > 6)  # more than would bury it
            record = await place.record("e1")
            assert (record.state, record.attempts) in {("failed", 0), ("processing", 1)}
            room[0] = 1_000_000
            await until(place.all_done)
        assert await place.effects() == ["e1"]
        assert (await place.record("e1")).attempts == 1
        assert "the database: " in notes.of(Alarm)[0].error
        assert "disk is full" in notes.of(Alarm)[0].error


class TestSharing(SharingScenes):
    pass
