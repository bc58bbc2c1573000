"""An edited message of a consumer: handlers see a new message with the sender's facts."""

from __future__ import annotations

from postroom.commands import Edit
from postroom.engine.consumer.durable_inbox import DurableInbox
from postroom.engine.consumer.messages import restore, to_record
from postroom.lookup import Filter
from postroom.model.envelope import REPLACES, read_headers, write_headers
from postroom.model.incoming import BODY_BYTES, Incoming
from postroom.record import State
from postroom.stores.memory import MemoryStore

WIRE = {
    "postroom-id": "m-1", "postroom-type": "paid", "postroom-key": "", "postroom-kseq": "7",
    "postroom-outbox": "shop", "postroom-correlation-id": "c", "tenant": "north",
    "content-type": "application/json",
}  # fmt: skip


async def _dead(headers, body=b'{"a": 1}'):
    store = MemoryStore()
    inbox = DurableInbox(store, "payments", strict=True)
    message = Incoming("payments", body, headers, None)
    await inbox.bury(message, to_record(message), "poison")
    (dead,) = await store.find(Filter())
    return store, dead


async def test_a_stored_message_keeps_what_its_sender_said():
    store, dead = await _dead(WIRE)
    new_id = await store.edit(dead.id, Edit(b'{"a": 2}', headers={"tenant": "south"}))
    kept = await store.get(new_id)
    message = restore(kept)
    assert (message.id, message.data, message.type) == (new_id, {"a": 2}, "paid")
    assert (message.correlation_id, message.kseq, message.headers) == ("c", 7, {"tenant": "south"})
    assert kept.headers[REPLACES] == dead.id
    assert kept.headers["postroom-id"] == "m-1"


async def test_a_body_that_was_too_large_can_be_given():
    store, dead = await _dead({**WIRE, BODY_BYTES: "20000000"}, b"")
    new_id = await store.edit(dead.id, Edit(b'{"a": 2}'))
    assert BODY_BYTES not in (await store.get(new_id)).headers
    again = await store.edit((await _again(store, new_id)).id, Edit(headers={"x": "y"}))
    headers = (await store.get(again)).headers
    assert (headers[REPLACES], headers["x"]) == (new_id, "y")


async def _again(store, event_id):
    await store.bury([event_id], "poison")
    (dead,) = [r for r in await store.find(Filter(state=State.DEAD)) if r.id == event_id]
    return dead


async def test_receivers_see_the_header_and_not_as_the_applications():
    store, dead = await _dead({"postroom-id": "m-1", "postroom-type": "paid"})
    record = await store.get(await store.edit(dead.id, Edit(b"{}")))
    headers = dict(write_headers(record, "outbox"))
    assert headers[REPLACES] == dead.id
    assert REPLACES not in read_headers(headers).headers
