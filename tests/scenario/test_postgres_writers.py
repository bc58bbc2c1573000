"""Several writers of one key, each on a connection of its own, on PostgreSQL."""

from __future__ import annotations

import psycopg
import pytest

from postroom import Event, SyncOutbox
from postroom.testing.store.tools import Hand
from tests.scenario.postgres_place import opened, own_schema

WRITERS, TURNS = 3, 4


@pytest.mark.promise("G4", "W8")
async def test_writers_that_take_turns_keep_the_order_of_their_key(postgres18_url):
    """Numbers come from one sequence, one by one: none that a session has put aside for later."""
    outbox, written = SyncOutbox(), []
    with own_schema(postgres18_url) as url:
        async with opened(url) as store:
            connections = [psycopg.connect(url) for _ in range(WRITERS)]
            for turn in range(TURNS):
                for n, connection in enumerate(connections):
                    written.append(f"{turn}-{n}")
                    outbox.add(connection, Event("t", id=written[-1], key="k"))
                    connection.commit()
            for connection in connections:
                connection.close()
            assert [record.id for record in await Hand(store).read()] == written
