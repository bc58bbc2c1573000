"""What is pruned on MariaDB is what is done and old at the moment of its deletion, not of the look."""

from __future__ import annotations

import pytest

from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.stores.mysql.session import Session
from postroom.testing.store.tools import Hand, event
from tests.contract.mysql_database import own_database


@pytest.mark.promise("G2")
@pytest.mark.parametrize(
    ("seconds", "kept"),
    [(60.0, {"replayed", "done again", "dead again"}), (0.0, {"replayed", "dead again"})],
)
async def test_an_event_that_is_replayed_between_look_and_deletion_is_kept(
    mariadb_url, monkeypatch, seconds, kept
):
    with own_database(mariadb_url) as database:
        async with database.store() as store, database.store() as another:
            async with database.writing() as connection:
                names = ("old", "replayed", "done again", "dead again")
                await Outbox().add_many(connection, [event(name, name) for name in names])
            hand = await Hand(store).take()
            await hand.settle(done=await hand.read(), keep_done=True)
            database.run(
                "UPDATE postroom_outbox SET settled_at = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR"
            )
            rows = Session.rows

            async def then_a_replay(self, name, /, **values):
                found = await rows(self, name, **values)
                if name == "prune_old" and found:
                    monkeypatch.setattr(Session, "rows", rows)
                    await another.replay(["replayed", "done again", "dead again"])
                    await another.bury(["dead again"], "no use")
                    database.run(
                        "UPDATE postroom_outbox SET state = 'done', stage = 'over', "
                        "settled_at = UTC_TIMESTAMP(6) WHERE id = 'done again'"
                    )
                return found

            monkeypatch.setattr(Session, "rows", then_a_replay)
            assert await store.prune(seconds, 100) == len(names) - len(kept)
            assert {record.id for record in await store.find(Filter())} == kept
