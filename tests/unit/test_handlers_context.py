"""What a handler adds through its context continues the story of its event, in both worlds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path

import aiosqlite
import pytest

from postroom.broker import Verdict
from postroom.engine.handlers.context import Context, SyncContext
from postroom.engine.handlers.handlers import Handlers
from postroom.event import Event
from postroom.lookup import Filter
from postroom.outbox import Outbox, SyncOutbox
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


@pytest.mark.parametrize(
    ("context", "outbox"), [(Context, Outbox), (SyncContext, SyncOutbox)], ids=["async", "sync"]
)
@pytest.mark.parametrize("name", ["add", "add_many", "cancel", "reschedule"])
def test_a_context_accepts_what_its_outbox_accepts(context, outbox, name):
    of_context = list(signature(getattr(context, name)).parameters.values())
    of_outbox = list(signature(getattr(outbox, name)).parameters.values())
    assert [p.name for p in of_outbox[:2]] == ["self", "conn"]
    assert of_context == [of_outbox[0], *of_outbox[2:]]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_context_takes_the_options_of_add(tmp_path, kind):
    store = SqliteStore(tmp_path / "shop.db")
    await store.migrate()
    await store.open()
    handlers = Handlers(name="billing").bind(store)
    later = datetime.now(UTC) + timedelta(days=1)
    told = []

    async def bill(event, tx, context):
        await context.add_many([Event("a", id="1", available_at=later), Event("a", id="2")])
        told.append(await context.add(Event("a", id="2"), on_duplicate="ignore"))
        told.append(await context.reschedule("1", later + timedelta(days=1)))
        told.append(await context.cancel("1"))

    def bill_sync(event, tx, context):
        context.add_many([Event("a", id="1", available_at=later), Event("a", id="2")])
        told.append(context.add(Event("a", id="2"), on_duplicate="ignore"))
        told.append(context.reschedule("1", later + timedelta(days=1)))
        told.append(context.cancel("1"))

    handlers.on("order.created", name="bill")(bill if kind == "async" else bill_sync)
    try:
        outcome = await outcome_of(handlers, make_record(type="order.created", key="k"))
        assert outcome.verdict is Verdict.CONFIRMED
        assert told == [None, True, True]
        found = {record.id: record for record in await store.find(Filter())}
    finally:
        await handlers.close()
        await store.close()
    assert {name: record.state for name, record in found.items()} == {
        "1": "cancelled",
        "2": "pending",
    }
    assert {record.causation_id for record in found.values()} == {"event-1"}
