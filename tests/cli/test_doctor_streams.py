"""What the doctor says of streams, lanes and relays, as each database tells it."""

from __future__ import annotations

import pytest

from postroom.admin.diagnosis import check_relays
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.store import Member


@pytest.mark.parametrize("store", ["sqlite", "postgres", "mariadb", "mongo"])
def test_each_finding_comes_and_goes(request, store):
    place = request.getfixturevalue(f"{store}_place")
    place.migrate()

    async def scene(store):
        async def told():
            return [(f.level, f.what) async for f in check_relays(store, {})]

        assert await told() == []
        await store.heartbeat("main", Member("a", True, "box"), 60, {})
        held = await store.take("main", "a", range(64), 60)
        assert await told() == []

        await store.heartbeat("main", Member("b", True, "box"), 60, {})
        assert await told() == [("warning", "2 relays of stream main are named 'box'")]
        await store.leave("main", "b")
        assert await told() == []

        few = {lane: held[lane] for lane in range(4)}
        await store.release("main", "a", few)
        assert await told() == [("warning", "4 lanes of stream main without an owner")]
        ghostly = await store.take("main", "ghost", list(few), 60)
        (found,) = await told()
        assert found == (
            "warning", "4 lanes of stream main leased by a relay without a heartbeat",
        )  # fmt: skip
        await store.release("main", "ghost", ghostly)
        await store.take("main", "a", list(few), 60)
        assert await told() == []

        await store.heartbeat("main", Member("a", False, "box"), 60, {})
        assert await told() == [("warning", "relay box of stream main is unhealthy")]
        await store.heartbeat("main", Member("a", True, "box"), 60, {})

        async with store.transaction() as tx:
            await Outbox().add(tx, Event("e", id="e", key="k"))
        assert await told() == []  # it is not late yet
        await store.leave("main", "a")
        assert await told() == [
            ("error", "1 event to be sent in stream main, and no relay serves it")
        ]
        await store.bury(["e"], "enough")
        assert await told() == [("warning", "1 dead letter in stream main")]

    place(scene)
