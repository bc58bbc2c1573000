"""The content part of the adapters' contract: everything is stored unchanged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroom.event import Event
from postroom.testing.transaction_tools import TransactionBench, ids

HOSTILE = [
    'it\'s a "quote" and a `tick`',
    "'); DROP TABLE postroom_outbox; --",
    "😀 emoji, 漢字, ümläut",
    "trailing space ",
    " leading space",
    "Case",
    "case",
    "100% %s %(id)s",
    "$1 $$ ${x} :name ?",
    "back\\slash \\' \\n",
    "x" * 249,
]


class FidelityContract:
    """Values are stored unchanged, whatever they contain."""

    @pytest.mark.req("S2.1", "S3.1", "S4.1")
    async def test_every_field_is_stored(self, bench: TransactionBench) -> None:
        occurred = datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=UTC)
        tx = await bench.begin()
        await bench.add(
            tx,
            Event(
                "order.created",
                {"total": 10, "note": "für dich"},
                id="e-1",
                key="order-42",
                aggregate_type="order",
                aggregate_id="42",
                stream="billing",
                topic="orders",
                headers={"tenant": "blå"},
                correlation_id="c-1",
                causation_path=[("shop", "cart.paid")],
                causation_id="cart-7",
                schema_version=3,
                occurred_at=occurred,
            ),
        )
        await bench.commit(tx)
        (row,) = await bench.rows()
        expected = {
            "id": "e-1",
            "stream": "billing",
            "lane": 0xDE % 64,
            "key_hash": bytes.fromhex("de944db85b190d4b4b22e759e2352c9a"),
            "type": "order.created",
            "topic": "orders",
            "key": "order-42",
            "aggregate_type": "order",
            "aggregate_id": "42",
            "payload": '{"total":10,"note":"für dich"}',
            "payload_bytes": None,
            "content_type": "application/json",
            "headers": '{"tenant":"blå"}',
            "correlation_id": "c-1",
            "causation_path": '[["shop","cart.paid"]]',
            "causation_id": "cart-7",
            "schema_version": 3,
            "kseq": None,
            "size": 31 + 17,
            "state": "pending",
            "stage": "ready",
            "attempts": 0,
            "next_attempt_at": None,
            "available_at": None,
            "last_error": None,
            "lease_owner": None,
            "settled_at": None,
        }
        assert {name: row[name] for name in expected} == expected

    async def test_options_are_stored_and_absent_for_other_events(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        gone = Event("t", id="gone", key="k", tombstone=True, partition_key="für dich")
        await bench.add(tx, gone)
        await bench.add(tx, Event("t", id="plain"), Event("t", id="third", partition=3))
        await bench.commit(tx)
        assert [
            (row["id"], row["payload"], row["payload_bytes"], row.get("options"))
            for row in await bench.rows()
        ] == [
            ("gone", None, b"", '{"tombstone":true,"partition_key":"für dich"}'),
            ("plain", "null", None, None),
            ("third", "null", None, '{"partition":3}'),
        ]

    async def test_bytes_come_back_as_they_went_in(self, bench: TransactionBench) -> None:
        everything = bytes(range(256)) * 3 + b"\x00\xff'\"%s"
        tx = await bench.begin()
        await bench.add(tx, Event("t", everything, id="e-1"))
        await bench.add(tx, Event("t", b"", id="e-2", content_type="application/x-empty"))
        await bench.add(tx, Event("t", b"\x00", id="e-3"), Event("t", bytearray(b"'"), id="e-4"))
        await bench.commit(tx)
        assert [
            (row["payload"], row["payload_bytes"], row["content_type"])
            for row in await bench.rows()
        ] == [
            (None, everything, "application/octet-stream"),
            (None, b"", "application/x-empty"),
            (None, b"\x00", "application/octet-stream"),
            (None, b"'", "application/octet-stream"),
        ]

    async def test_json_comes_back_byte_for_byte(self, bench: TransactionBench) -> None:
        payload = {"z": 1, "a": [True, None, 1.5, "nul \x00", "é 😀 ' \" \\ %s :x"], "": {}}
        tx = await bench.begin()
        await bench.add(tx, Event("t", payload))
        await bench.commit(tx)
        (row,) = await bench.rows()
        assert row["payload"] == (
            '{"z":1,"a":[true,null,1.5,"nul \\u0000","é 😀 \' \\" \\\\ %s :x"],"":{}}'
        )

    async def test_hostile_text_comes_back_as_it_went_in(self, bench: TransactionBench) -> None:
        tx = await bench.begin()
        for n, text in enumerate(HOSTILE):
            await bench.add(
                tx,
                Event(
                    text, text, id=f"{n} {text}"[:80], key=text, aggregate_type=text, topic=text,
                    correlation_id=text, headers={text: text},
                ),
            )  # fmt: skip
        await bench.add(tx, Event("t", key="k" * 255, id="i" * 100))
        await bench.commit(tx)
        *rows, longest = await bench.rows()
        for n, (text, row) in enumerate(zip(HOSTILE, rows, strict=True)):
            assert row["id"] == f"{n} {text}"[:80]
            for column in ("type", "key", "aggregate_type", "topic", "correlation_id"):
                assert row[column] == text
        assert (longest["key"], longest["id"]) == ("k" * 255, "i" * 100)
        assert len({row["key_hash"] for row in rows}) == len(HOSTILE)

    async def test_ids_that_differ_in_case_or_space_are_different(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        await bench.add(tx, *(Event("t", id=i) for i in ("a", "A", "a ", "á")))
        await bench.commit(tx)
        assert ids(await bench.rows()) == ["a", "A", "a ", "á"]

    @pytest.mark.promise("W7")
    async def test_scheduled_events_wait_and_past_ones_do_not(
        self, bench: TransactionBench
    ) -> None:
        later = datetime(2199, 1, 1, tzinfo=UTC)
        before = datetime.now(UTC) - timedelta(days=1)
        tx = await bench.begin()
        await bench.add(
            tx,
            Event("t", id="later", available_at=later),
            Event("t", id="now"),
            Event("t", id="before", available_at=before),
        )
        await bench.commit(tx)
        rows = {row["id"]: row for row in await bench.rows()}
        assert {i: row["stage"] for i, row in rows.items()} == {
            "later": "waiting",
            "now": "ready",
            "before": "ready",
        }
        assert rows["later"]["next_attempt_at"] == rows["later"]["available_at"] is not None
        assert rows["now"]["next_attempt_at"] is rows["before"]["next_attempt_at"] is None
        assert {row["state"] for row in rows.values()} == {"pending"}
