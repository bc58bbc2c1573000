"""What a handler adds through its context continues the story of its event, in both worlds."""

from __future__ import annotations

from pathlib import Path

import aiosqlite
import pytest

from postroom.broker import Verdict
from postroom.engine.handlers.handlers import Handlers
from postroom.event import Event
from postroom.stores.sqlite import SqliteStore
from postroom.testing.broker_tools import make_record
from tests.unit.handler_database import outcome_of


@pytest.mark.req("S3.1")
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize(
    ("correlation", "expected"), [("story-7", "story-7"), (None, "event-1")], ids=["known", "first"]
)
async def test_what_a_handler_adds_inherits_the_story(tmp_path, kind, correlation, expected):
    path = str(tmp_path / "shop.db")
    store = SqliteStore(Path(path))
    await store.migrate()
    await store.open()
    handlers = Handlers(name="billing").bind(store)

    async def bill(event, tx, context):
        assert (context.module, context.event, context.tx) == ("billing", event, tx)
        await context.add(Event("invoice.sent", {"n": 1}, id="new"))
        await context.add(Event("invoice.sent", id="own", correlation_id="its own"))

    def bill_sync(event, tx, context):
        assert (context.module, context.event, context.tx) == ("billing", event, tx)
        context.add(Event("invoice.sent", {"n": 1}, id="new"))
        context.add(Event("invoice.sent", id="own", correlation_id="its own"))

    handlers.on("order.created", name="bill")(bill if kind == "async" else bill_sync)
    record = make_record(
        correlation_id=correlation,
        causation_json='[["shop", "cart.paid"]]',
        type="order.created",
        key="customer-3",  # which many stories may share
    )
    try:
        assert (await outcome_of(handlers, record)).verdict is Verdict.CONFIRMED
        async with aiosqlite.connect(path) as conn:
            sql = "SELECT id, correlation_id, causation_path FROM postroom_outbox ORDER BY seq"
            found = await (await conn.execute(sql)).fetchall()
    finally:
        await handlers.close()
        await store.close()
    path_of_both = '[["shop","cart.paid"],["billing","order.created"]]'
    assert [tuple(row) for row in found] == [
        ("new", expected, path_of_both),
        ("own", "its own", path_of_both),
    ]
