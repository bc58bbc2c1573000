"""Waiting until events are done: `Outbox.wait`, `Relay.delivered`, `Bus.delivered`."""

from __future__ import annotations

import asyncio
import pickle
from datetime import UTC, datetime, timedelta

import pytest

from postroom import (
    Bus,
    ConfigError,
    Event,
    MemoryBroker,
    MemoryStore,
    NotDeliveredError,
    NotFoundError,
    Outbox,
    Relay,
    RetryPolicy,
    SchemaError,
    StoreError,
)
from postroom.broker import Outcome, Verdict
from postroom.delivery import Watch, until_done
from postroom.lookup import Standing
from postroom.stores.sqlite import SqliteStore

NEVER = datetime.now(UTC) + timedelta(days=1)


async def added(store, *events):
    async with store.transaction() as tx:
        await Outbox().add_many(tx, events)
    return [event.id for event in events]


class Looks:
    """A store that answers from a script, and counts the looks."""

    def __init__(self, *answers):
        self.answers, self.looks, self.sizes = list(answers), 0, []

    async def look_up(self, ids):
        self.looks += 1
        self.sizes.append(len(ids))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {name: Standing("main", state) for name, state in answer.items() if name in ids}


@pytest.mark.parametrize("keep_done_seconds", [0, 60])
async def test_a_relay_reports_its_own_outcomes(keep_done_seconds):
    store = MemoryStore()
    broker = MemoryBroker()
    relay = Relay(store, broker, keep_done_seconds=keep_done_seconds)
    hold = broker.hold()
    async with relay:
        ids = await added(store, Event("a", id="1"), Event("a", id="2", key="k"))
        waiting = asyncio.create_task(relay.delivered(ids, timeout=20))
        async with asyncio.timeout(20):
            await hold.reached.wait()
        hold.release()
        await waiting
        assert len(broker.messages) == 2
        if keep_done_seconds:
            await relay.delivered(ids)
            await Outbox().wait(store, ids)
        else:
            with pytest.raises(NotFoundError, match=r"'1'.*after the commit.*committed=True"):
                await relay.delivered(ids)
            await relay.delivered(ids, committed=True)


async def test_events_that_end_otherwise_are_named():
    store = MemoryStore()
    broker = MemoryBroker()
    broker.script(lambda r: Outcome(Verdict.REJECTED, "no") if r.id == "dead" else None)
    ids = await added(
        store,
        Event("a", id="done"),
        Event("a", id="dead"),
        Event("a", id="gone", available_at=NEVER),
        Event("a", id="late", deliver_by=datetime.now(UTC) - timedelta(hours=1)),
        Event("a", id="later", available_at=NEVER),
    )
    await store.cancel(["gone"])
    async with Relay(store, broker, retry=RetryPolicy(max_attempts=1)) as relay:
        with pytest.raises(NotDeliveredError) as caught:
            await relay.delivered(ids[:4], timeout=20)
        assert caught.value.states == {"dead": "dead", "gone": "cancelled", "late": "expired"}
        assert caught.value.waiting == ()
        with pytest.raises(NotDeliveredError, match=r"1 still waiting.*later is pending") as caught:
            await relay.delivered(ids, timeout=0)
    assert caught.value.states["later"] == "pending"
    assert caught.value.waiting == ("later",)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.states, again.waiting) == (caught.value.states, caught.value.waiting)


async def test_an_uncommitted_event_is_an_error_that_says_so():
    store = MemoryStore()
    async with store.begin() as tx:
        event = await Outbox().add(tx, Event("a"))
        with pytest.raises(NotFoundError, match=f"{event.id}.*commit of its transaction"):
            await Outbox().wait(store, [event.id])


async def test_an_event_that_was_seen_and_is_gone_is_done():
    looks = Looks({"a": "pending", "b": "failed"}, {"b": "processing"}, {})
    await until_done(looks, Watch(["a", "b"]), 20, committed=False)
    assert looks.sizes == [2, 2, 1]


async def test_the_pauses_between_looks_grow():
    looks = Looks({"a": "pending"})
    with pytest.raises(NotDeliveredError):
        await until_done(looks, Watch("a"), 0.5, committed=False)
    assert looks.looks <= 8  # 0.01, 0.02, … 0.5


async def test_an_unreachable_store_is_asked_until_the_timeout():
    down = StoreError("down")
    looks = Looks(down, {"a": "pending"}, down, {"a": "done"})
    await until_done(looks, Watch(["a"]), 20, committed=False)
    with pytest.raises(NotDeliveredError, match="a is unknown") as caught:
        await until_done(Looks(down), Watch(["a"]), 0.1, committed=False)
    assert caught.value.__cause__ is down


async def test_many_ids_are_looked_up_in_steps():
    names = [f"e{n}" for n in range(1_201)]
    looks = Looks(dict.fromkeys(names, "done"))
    await until_done(looks, Watch(names), timedelta(seconds=20), committed=False)
    assert looks.sizes == [500, 500, 201]
    await until_done(Looks({}), Watch([]), 0, committed=False)
    with pytest.raises(TypeError, match="ids must be texts"):
        Watch([Event("a")])


async def test_the_store_must_have_the_tables_of_the_outbox(tmp_path):
    store = SqliteStore(f"sqlite:///{tmp_path}/a.db", prefix="shop_")
    with pytest.raises(ConfigError, match="prefix"):
        await Outbox(prefix="other_").wait(store, ["a"])
    with pytest.raises((SchemaError, StoreError)):
        async with store:
            pass


async def test_a_bus_waits_for_the_handlers(tmp_path):
    bus = Bus(f"sqlite:///{tmp_path}/bus.db")
    orders, mail = bus.module("orders"), bus.module("mail")
    begun, go_on, handled = asyncio.Event(), asyncio.Event(), []

    @mail.handlers.on("placed")
    async def placed(event, tx):
        begun.set()
        await go_on.wait()
        handled.append(event.id)

    await bus.migrate()
    async with bus:
        async with orders.store.transaction() as tx:
            event = await orders.outbox.add(tx, Event("placed"))
        waiting = asyncio.create_task(bus.delivered([event.id], timeout=20))
        async with asyncio.timeout(20):
            await begun.wait()
        assert not waiting.done()
        go_on.set()
        await waiting
        assert handled == [event.id]
        with pytest.raises(NotFoundError):
            await bus.delivered("unknown")


async def test_a_running_relay_obeys_cancel_and_reschedule():
    store, broker, outbox = MemoryStore(), MemoryBroker(), Outbox()
    async with Relay(store, broker, poll_seconds=0.05) as relay:
        ids = await added(
            store, *(Event("a", id=name, available_at=NEVER) for name in ("gone", "sooner"))
        )
        async with store.transaction() as tx:
            assert await outbox.cancel(tx, "gone")
            assert await outbox.reschedule(tx, "sooner", datetime.now(UTC))
        with pytest.raises(NotDeliveredError) as caught:
            await relay.delivered(ids, timeout=20)
        assert caught.value.states == {"gone": "cancelled"}
        async with store.transaction() as tx:
            assert not await outbox.cancel(tx, "sooner")  # too late
    assert [message.record.id for message in broker.messages] == ["sooner"]
