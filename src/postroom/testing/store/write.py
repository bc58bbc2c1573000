"""The contract of writing (rules W7, W9, W10)."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from postroom.errors import DuplicateEventError
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.store import Store
from postroom.testing.store.tools import (
    Add,
    Another,
    Hand,
    Write,
    event,
    names,
    needs,
)

LONG_AGO = datetime(2001, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)

HOSTILE = (
    "'; DROP TABLE postroom_outbox; --",
    'a "double" quote',
    "back\\slash \\' \\0",
    "percent %s %(x)s %% 100%",
    "dollar $1 ${HOME} $$ :name ?1 @x",
    "emoji 🦊 and ž and 中文 and \u202e",
    "order-1",
    "order-1 ",
    " order-1",
    "Order-1",
    "ORDER-1",
    "é",
    "e\u0301",
    "x" * 255,
    "x" * 254,
    "ß" * 127,
    "null",
    "0",
    "00",
    "{}",
    "$ne",
    "a.b",
)


class _Cancelled(Exception):
    """Makes a business transaction roll back."""


class WritingContract:
    """Committed events are read unchanged."""

    @pytest.mark.req("S2.1", "S3.1", "S4.1")
    async def test_every_field_comes_back(self, store: Store, add: Add) -> None:
        written = Event(
            "order.created",
            {"total": 10},
            id="user-created-123",
            key="order-42",
            aggregate_type="order",
            aggregate_id="42",
            topic="orders",
            headers={"traceparent": "00-1-2-01", "ž": "🦊"},
            correlation_id="c-1",
            causation_path=[("shop", "cart.closed"), ("billing", "paid")],
            causation_id="cart-7-closed",
            schema_version=7,
            content_type="application/cloudevents+json",
            occurred_at=LONG_AGO,
        )
        await add(written)
        record = await store.get("user-created-123")
        assert record is not None
        assert record.seq >= 1
        assert (record.id, record.type) == ("user-created-123", "order.created")
        assert (record.stream, record.topic) == ("main", "orders")
        assert (record.key, record.aggregate_type, record.aggregate_id) == (
            "order-42",
            "order",
            "42",
        )
        assert record.payload == b'{"total":10}'
        assert record.content_type == "application/cloudevents+json"
        assert record.headers == {"traceparent": "00-1-2-01", "ž": "🦊"}
        assert record.correlation_id == "c-1"
        assert record.causation_path == (("shop", "cart.closed"), ("billing", "paid"))
        assert record.causation_id == "cart-7-closed"
        assert (record.schema_version, record.kseq) == (7, None)
        assert record.occurred_at == LONG_AGO
        assert abs(record.created_at - datetime.now(UTC)) < timedelta(minutes=5)
        assert (record.state, record.attempts, record.last_error) == ("pending", 0, None)

    async def test_what_is_not_given_is_none(self, store: Store, add: Add) -> None:
        await add(Event("bare", id="bare"))
        record = await store.get("bare")
        assert record is not None
        assert record.payload == b"null"
        assert record.topic == "outbox_events"
        assert record.headers == {}
        assert record.causation_path == ()
        assert (record.key, record.aggregate_type, record.aggregate_id) == (None, None, None)
        assert (record.correlation_id, record.next_attempt_at) == (None, None)
        assert (record.causation_id, record.options, record.expires_at) == (None, {}, None)

    @pytest.mark.req("S3.2", "S4.2", "S5.1")
    @pytest.mark.promise("G1")
    async def test_a_rollback_leaves_nothing(self, store: Store, write: Write) -> None:
        with suppress(_Cancelled):
            async with write(store) as tx:
                await Outbox().add(tx, event("lost"))
                raise _Cancelled
        assert await store.get("lost") is None
        assert await Hand(store).read() == []

    @pytest.mark.promise("G1")
    async def test_nobody_sees_an_event_before_its_commit(
        self, store: Store, write: Write, another: Another
    ) -> None:
        other = await another()
        async with write(store) as tx:
            await Outbox().add(tx, event("early"))
            assert await Hand(other).read() == []
            assert await other.get("early") is None
        assert names(await Hand(other).read()) == ["early"]

    @pytest.mark.promise("W5")
    async def test_an_id_is_taken_once_however_much_its_transaction_holds(
        self, store: Store, write: Write
    ) -> None:
        async with write(store) as tx:
            await Outbox().add_many(tx, [event(f"e{n}") for n in range(1_200)])
            with pytest.raises(DuplicateEventError):
                await Outbox().add(tx, event("e7"))
        assert len(await Hand(store).read()) == 1_200

    @needs("transactions")
    @pytest.mark.req("S4.6")
    @pytest.mark.promise("G1", "W9")
    async def test_strict_numbers_have_no_gap_after_a_rollback(
        self, store: Store, add: Add, write: Write
    ) -> None:
        await add(event("one", "k"), strict=True)
        with suppress(_Cancelled):
            async with write(store) as tx:
                await Outbox(ordering="strict").add(tx, event("lost", "k"))
                raise _Cancelled
        await add(event("two", "k"), event("three", "k"), event("apart", "other"), strict=True)
        found = {r.id: r.kseq for r in await Hand(store).read()}
        assert found == {"one": 1, "two": 2, "three": 3, "apart": 1}

    @pytest.mark.req("S2.1")
    async def test_json_text_comes_back_byte_for_byte(self, store: Store, add: Add) -> None:
        payload = {
            "b": 1,
            "a": [1.0, 1e300, 12345678901234567890, -0.0],
            "\u0000": "\u0000ž🦊\u2028",
        }
        await add(Event("t", payload, id="json"))
        record = await store.get("json")
        assert record is not None
        text = '{"b":1,"a":[1.0,1e+300,12345678901234567890,-0.0],"\\u0000":"\\u0000ž🦊\u2028"}'
        assert record.payload == text.encode()
        assert json.loads(record.payload) == payload

    @pytest.mark.req("S2.1")
    @pytest.mark.parametrize("body", [bytes(range(256)), b"", b'{"a": 1}', b"\xff" * 300_000])
    async def test_bytes_come_back_as_they_went_in(
        self, store: Store, add: Add, body: bytes
    ) -> None:
        await add(Event("t", body, id="binary"))
        record = await store.get("binary")
        assert record is not None
        assert type(record.payload) is bytes
        assert record.payload == body
        assert record.content_type == "application/octet-stream"
        assert (await Hand(store).read())[0].payload == body

    @pytest.mark.req("S2.1", "S4.6")
    @pytest.mark.promise("W10")
    async def test_hostile_keys_types_and_topics_stay_what_they_are(
        self, store: Store, add: Add
    ) -> None:
        written = [
            Event(text, key=text, topic=text.encode()[:248].decode(errors="ignore"), id=f"e{n}")
            for n, text in enumerate(HOSTILE)
        ]
        await add(*written)
        hand = await Hand(store).take()
        records = {r.id: r for r in await hand.read()}
        assert len(records) == len(HOSTILE)
        for given in written:
            record = records[given.id]
            assert (record.type, record.key, record.topic) == (given.type, given.key, given.topic)
        assert len({r.key_hash for r in records.values()}) == len(HOSTILE)
        await hand.fail(records["e6"])  # order-1: none of its look-alikes is blocked by it
        await add(*(Event("later", key=text, id=f"later{n}") for n, text in enumerate(HOSTILE)))
        blocked = [r.id for r in await hand.read() if r.barrier is not None]
        assert blocked == ["later6"]

    @pytest.mark.req("S2.1")
    async def test_a_hostile_id_finds_its_event_only(self, store: Store, add: Add) -> None:
        ids = [text for text in HOSTILE if len(text.encode()) <= 100]
        await add(*(Event("t", {"n": n}, id=text) for n, text in enumerate(ids)))
        for n, text in enumerate(ids):
            record = await store.get(text)
            assert record is not None
            assert (record.id, record.data) == (text, {"n": n})
        assert await store.bury(["' OR 1=1 --", "%", "order-1"], "one only") == 1

    @pytest.mark.req("S4.6")
    @pytest.mark.promise("W10")
    async def test_the_same_number_of_two_types_is_two_keys(self, store: Store, add: Add) -> None:
        await add(
            event("order", aggregate_type="order", aggregate_id="1"),
            event("user", aggregate_type="user", aggregate_id="1"),
            event("untyped", "1"),
        )
        hand = await Hand(store).take()
        await hand.fail(await hand.only("order"))
        await add(
            event("order 2", aggregate_type="order", aggregate_id="1"),
            event("user 2", aggregate_type="user", aggregate_id="1"),
            event("untyped 2", "1"),
        )
        free = {r.id for r in await hand.read() if r.barrier is None}
        assert free == {"user", "user 2", "untyped", "untyped 2"}
