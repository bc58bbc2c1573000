"""The contract of a write-side adapter: how `add` and `accept` treat the caller's transaction.

A test class for an adapter subclasses TransactionContract (and SavepointContract, if its driver has
savepoints) and provides a fixture `bench` that returns a TransactionBench: how to open, end and
inspect transactions with that driver. The tests are the same for all of them.
"""

from __future__ import annotations

from inspect import isawaitable
from typing import Any

import pytest

from postroom.errors import (
    AutocommitError,
    DuplicateEventError,
    PayloadError,
    UnsupportedConnectionError,
)
from postroom.event import Event
from postroom.testing.transaction_content import FidelityContract
from postroom.testing.transaction_tools import Note, SavepointBench, TransactionBench, ids, numbers
from postroom.testing.transaction_waiting import WaitingContract
from postroom.transaction import Acceptance
from postroom.transactions import resolve, resolve_sync

__all__ = ["Note", "SavepointBench", "SavepointContract", "TransactionBench", "TransactionContract"]


class TransactionContract(FidelityContract, WaitingContract):
    """Required of every adapter."""

    @pytest.mark.req("S3.2", "S4.2", "S5.1")
    @pytest.mark.promise("G1", "W1")
    async def test_commit_leaves_the_event_with_the_business_row(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        await bench.order(tx, "A")
        await bench.add(tx, Event("order.created", {"n": 1}, id="e-1"))
        await bench.commit(tx)
        assert ids(await bench.rows()) == ["e-1"]
        assert await bench.orders() == ["A"]

    @pytest.mark.req("S4.2")
    @pytest.mark.promise("G1", "W1")
    async def test_rollback_leaves_nothing(self, bench: TransactionBench) -> None:
        tx = await bench.begin()
        await bench.order(tx, "A")
        await bench.add(tx, Event("order.created", id="e-1"))
        await bench.rollback(tx)
        assert await bench.rows() == []
        assert await bench.orders() == []

    @pytest.mark.promise("G1", "W1")
    async def test_rollback_leaves_nothing_when_the_event_came_first(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        await bench.add(tx, Event("order.created", id="e-1"))
        await bench.order(tx, "A")
        await bench.rollback(tx)
        assert await bench.rows() == []
        assert await bench.orders() == []

    @pytest.mark.promise("G1", "W1")
    async def test_add_never_commits(self, bench: TransactionBench) -> None:
        tx = await bench.begin()
        await bench.order(tx, "A")
        await bench.add(tx, Event("order.created", id="e-1"))
        await bench.add(tx, Event("a", id="e-2"), Event("b", id="e-3"))
        await bench.accept(tx, Note("m-1"))
        assert await bench.rows() == []
        assert await bench.rows("postroom_inbox") == []
        assert await bench.orders() == []
        await bench.commit(tx)
        assert ids(await bench.rows()) == ["e-1", "e-2", "e-3"]
        assert await bench.orders() == ["A"]

    @pytest.mark.promise("G1", "W1")
    async def test_autocommit_is_refused_with_advice(self, bench: TransactionBench) -> None:
        target = await bench.autocommitting()
        with pytest.raises(AutocommitError, match=r"autocommit mode.*BEGIN"):
            await bench.add(target, Event("order.created"))
        with pytest.raises(AutocommitError):
            await bench.add(target, Event("order.created", key="k"), ordering="strict")
        with pytest.raises(AutocommitError):
            await bench.accept(target, Note("m-1"))
        with pytest.raises(AutocommitError):
            await bench.forget(target, older_than_seconds=60)
        with pytest.raises(AutocommitError):
            await bench.cancel(target, "e-1")
        assert await bench.rows() == []
        assert await bench.rows("postroom_counter") == []
        assert await bench.rows("postroom_inbox") == []

    @pytest.mark.promise("W1")
    async def test_a_wrong_object_is_a_type_error_that_lists_what_is_accepted(
        self, bench: TransactionBench
    ) -> None:
        with pytest.raises(UnsupportedConnectionError, match=r"sqlite3\.Connection") as caught:
            await bench.add(object(), Event("order.created"))
        assert isinstance(caught.value, TypeError)
        with pytest.raises(UnsupportedConnectionError):
            await bench.accept(object(), Note("m-1"))

    @pytest.mark.promise("G4")
    async def test_several_adds_keep_their_order(self, bench: TransactionBench) -> None:
        tx = await bench.begin()
        await bench.add(tx, Event("t", id="e-3"))
        await bench.add(tx, Event("t", id="e-1"), Event("t", id="e-9"), Event("t", id="e-0"))
        await bench.add(tx, Event("t", id="e-2"))
        await bench.commit(tx)
        assert ids(await bench.rows()) == ["e-3", "e-1", "e-9", "e-0", "e-2"]

    @pytest.mark.promise("G1", "G4")
    async def test_ten_thousand_at_once_in_order(self, bench: TransactionBench) -> None:
        tx = await bench.begin()
        await bench.order(tx, "A")
        await bench.add(tx, *(Event("t", n, id=f"e-{n}", key=f"k{n % 7}") for n in range(10_000)))
        await bench.commit(tx)
        rows = await bench.rows()
        assert ids(rows) == [f"e-{n}" for n in range(10_000)]
        assert [row["payload"] for row in rows] == [str(n) for n in range(10_000)]

    @pytest.mark.req("S4.1")
    @pytest.mark.promise("W5")
    async def test_a_duplicate_is_told_and_the_transaction_goes_on(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        await bench.add(tx, Event("first", 1, id="e-1"))
        await bench.commit(tx)
        tx = await bench.begin()
        await bench.order(tx, "A")
        with pytest.raises(DuplicateEventError, match="'e-1' is already in the outbox") as caught:
            await bench.add(tx, Event("second", 2, id="e-1"))
        assert caught.value.ids == ("e-1",)
        await bench.order(tx, "B")
        await bench.add(tx, Event("third", 3, id="e-3"))
        await bench.commit(tx)
        assert [(row["id"], row["type"], row["payload"]) for row in await bench.rows()] == [
            ("e-1", "first", "1"),
            ("e-3", "third", "3"),
        ]
        assert await bench.orders() == ["A", "B"]

    async def test_an_adapter_tells_its_target_and_what_is_stored(
        self, bench: TransactionBench
    ) -> None:
        """Each call makes its own adapter: the target is what they have in common."""
        tx = await bench.begin()
        await bench.add(tx, Event("t", id="e-1"))
        find: Any = resolve_sync if bench.sync else resolve
        adapter = find(tx)
        assert adapter.target is find(tx).target
        stored = adapter.stored(["e-1"])
        assert (await stored if isawaitable(stored) else stored) in ({"e-1"}, None)
        await bench.commit(tx)

    @pytest.mark.promise("W5")
    async def test_a_duplicate_among_many_is_told_after_the_others_were_written(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        await bench.add(tx, Event("t", id="e-2"))
        with pytest.raises(DuplicateEventError) as caught:
            await bench.add(tx, Event("t", id="e-1"), Event("t", id="e-2"), Event("t", id="e-3"))
        assert "e-2" in caught.value.ids
        await bench.commit(tx)
        assert ids(await bench.rows()) == ["e-2", "e-1", "e-3"]

    @pytest.mark.promise("W5")
    async def test_the_same_id_twice_in_one_call_writes_nothing(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        await bench.order(tx, "A")
        with pytest.raises(DuplicateEventError) as caught:
            await bench.add(tx, Event("t", id="e-1"), Event("t", id="e-2"), Event("u", id="e-1"))
        assert caught.value.ids == ("e-1",)
        await bench.commit(tx)
        assert await bench.rows() == []
        assert await bench.orders() == ["A"]

    @pytest.mark.promise("W5", "W9")
    async def test_ignored_duplicates_write_nothing_and_use_no_number(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        await bench.add_new(tx, Event("t", 1, id="keyed-1", key="k"))
        await bench.add_new(tx, Event("t", 1, id="strict-1", key="k"), ordering="strict")
        await bench.commit(tx)
        tx = await bench.begin()
        await bench.order(tx, "A")
        for ordering in ("keyed", "strict"):
            one, two, three, four = (
                Event("t", n, id=f"{ordering}-{n}", key="k") for n in range(1, 5)
            )
            other = Event("u", "other", id=one.id, key="k")
            assert await bench.add_new(tx, other, ordering=ordering) == []
            assert await bench.add_new(tx, two, other, three, two, ordering=ordering) == [
                two.id, three.id,
            ]  # fmt: skip
            assert await bench.add_new(tx, three, one, ordering=ordering) == []
            await bench.add(tx, four, ordering=ordering)
        await bench.commit(tx)
        found = [(row["id"], row["type"], row["kseq"]) for row in await bench.rows()]
        assert sorted(found) == [
            *((f"keyed-{n}", "t", None) for n in range(1, 5)),
            *((f"strict-{n}", "t", n) for n in range(1, 5)),
        ]
        assert await bench.orders() == ["A"]

    async def test_bad_payload_in_the_middle_leaves_the_transaction_usable(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        await bench.order(tx, "A")
        await bench.add(tx, Event("t", id="e-1"))
        with pytest.raises(PayloadError, match=r"\$\.price"):
            await bench.add(tx, Event("t", {"price": float("nan")}))
        with pytest.raises(PayloadError, match=r"\$\[0\]"):
            await bench.add(tx, Event("t", id="e-2"), Event("t", [object()]))
        await bench.add(tx, Event("t", id="e-3"))
        await bench.commit(tx)
        assert ids(await bench.rows()) == ["e-1", "e-3"]
        assert await bench.orders() == ["A"]

    # -- strict order (W9) ----------------------------------------------------------------------

    @pytest.mark.promise("G4", "W9")
    async def test_strict_numbers_follow_the_order_of_the_events(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        await bench.add(tx, Event("t", id="b1", key="b"), ordering="strict")
        await bench.add(
            tx,
            Event("t", id="b2", key="b"),
            Event("t", id="a1", key="a"),
            Event("t", id="b3", key="b"),
            Event("t", id="other topic", key="b", topic="elsewhere"),
            Event("t", id="other type", key="b", aggregate_type="user"),
            Event("t", id="a2", key="a"),
            ordering="strict",
        )
        await bench.commit(tx)
        assert numbers(await bench.rows()) == [
            ("b1", 1), ("b2", 2), ("a1", 1), ("b3", 3), ("other topic", 1), ("other type", 1),
            ("a2", 2),
        ]  # fmt: skip

    @pytest.mark.promise("W9")
    async def test_strict_numbers_have_no_gap_after_a_rollback(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        await bench.add(tx, Event("t", id="e-1", key="k"), ordering="strict")
        await bench.commit(tx)
        tx = await bench.begin()
        await bench.add(
            tx, Event("t", id="x", key="k"), Event("t", id="y", key="k"), ordering="strict"
        )
        await bench.rollback(tx)
        tx = await bench.begin()
        await bench.add(tx, Event("t", id="e-2", key="k"), ordering="strict")
        await bench.commit(tx)
        assert numbers(await bench.rows()) == [("e-1", 1), ("e-2", 2)]

    @pytest.mark.promise("W5", "W9")
    async def test_strict_numbers_have_no_gap_after_a_caught_duplicate(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        await bench.add(tx, Event("t", id="e-1", key="k"), ordering="strict")
        with pytest.raises(DuplicateEventError):
            await bench.add(tx, Event("t", id="e-1", key="k"), ordering="strict")
        with pytest.raises(DuplicateEventError) as caught:
            await bench.add(
                tx,
                Event("t", id="e-2", key="k"),
                Event("t", id="e-1", key="k"),
                Event("t", id="e-3", key="k"),
                ordering="strict",
            )
        assert caught.value.ids == ("e-1",)
        await bench.add(tx, Event("t", id="e-4", key="k"), ordering="strict")
        await bench.commit(tx)
        assert numbers(await bench.rows()) == [("e-1", 1), ("e-2", 2), ("e-3", 3), ("e-4", 4)]

    # -- the inbox (I1) ---------------------------------------------------------------------------

    @pytest.mark.req("S3.3", "S3.4", "S5.4")
    @pytest.mark.promise("G6", "I1")
    async def test_accept_says_new_once(self, bench: TransactionBench) -> None:
        tx = await bench.begin()
        assert await bench.accept(tx, Note("m-1", "order.created", "c-1")) is True
        assert await bench.accept(tx, Note("m-1", "order.created", "c-1")) is False
        await bench.order(tx, "A")
        await bench.commit(tx)
        tx = await bench.begin()
        assert await bench.accept(tx, Note("m-1", "order.created", "c-1")) is False
        assert await bench.accept(tx, Note("m-1"), "shipping") is True
        await bench.commit(tx)
        seen = {row["consumer"]: row for row in await bench.rows("postroom_inbox")}
        assert sorted(seen) == ["payments", "shipping"]
        row = seen["payments"]
        assert (row["id"], row["type"], row["correlation_id"], row["state"]) == (
            "m-1",
            "order.created",
            "c-1",
            "done",
        )
        assert row["received_at"] is not None
        assert row["processed_at"] is not None

    @pytest.mark.req("S3.5")
    @pytest.mark.promise("G6", "I1")
    async def test_a_message_whose_work_was_rolled_back_is_new_again(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        assert await bench.accept(tx, Note("m-1")) is True
        await bench.rollback(tx)
        tx = await bench.begin()
        assert await bench.accept(tx, Note("m-1")) is True
        await bench.commit(tx)

    @pytest.mark.req("S3.5")
    @pytest.mark.promise("I1")
    async def test_received_alone_is_not_done(self, bench: TransactionBench) -> None:
        tx = await bench.begin()
        await bench.execute(
            tx,
            "INSERT INTO postroom_inbox (consumer, id, type, state, received_at) "
            f"VALUES ('payments', 'm-1', 'note', 'received', {bench.instant})",
        )
        await bench.commit(tx)
        (before,) = await bench.rows("postroom_inbox")
        tx = await bench.begin()
        assert await bench.accept(tx, Note("m-1")) is True
        assert await bench.accept(tx, Note("m-1")) is False
        await bench.commit(tx)
        (row,) = await bench.rows("postroom_inbox")
        assert (row["state"], row["received_at"]) == ("done", before["received_at"])
        assert before["processed_at"] is None
        assert row["processed_at"] is not None

    @pytest.mark.promise("G6")
    async def test_what_is_done_is_counted_as_this_transaction_sees_it(
        self, bench: TransactionBench
    ) -> None:
        earlier, now, never, other = (
            Acceptance("payments", "m-1", "t", None),
            Acceptance("payments", "m-2", "t", None),
            Acceptance("payments", "m-3", "t", None),
            Acceptance("shipping", "m-1", "t", None),
        )
        tx = await bench.begin()
        await bench.accept(tx, Note("m-1"))
        await bench.commit(tx)
        tx = await bench.begin()
        assert await bench.accept(tx, Note("m-2")) is True
        assert await bench.count_done(tx, earlier, now, never, other) == 2
        assert await bench.count_done(tx, never) == 0
        await bench.rollback(tx)
        tx = await bench.begin()
        assert await bench.count_done(tx, earlier, now) == 1
        await bench.rollback(tx)

    @pytest.mark.promise("I1")
    async def test_a_message_that_was_forgotten_is_new_again(self, bench: TransactionBench) -> None:
        tx = await bench.begin()
        assert await bench.accept(tx, Note("m-1")) is True
        assert await bench.accept(tx, Note("m-1"), "shipping") is True
        await bench.commit(tx)
        tx = await bench.begin()
        assert await bench.forget(tx, older_than_seconds=3_600) == 0
        assert await bench.forget(tx, older_than_seconds=-3_600) == 1
        assert await bench.accept(tx, Note("m-1")) is True
        assert await bench.accept(tx, Note("m-1"), "shipping") is False
        await bench.commit(tx)

    @pytest.mark.req("S5.7")
    @pytest.mark.promise("G1", "G6")
    async def test_inbox_row_effect_and_new_event_are_one_commit(
        self, bench: TransactionBench
    ) -> None:
        for end in (bench.rollback, bench.commit, bench.commit):
            tx = await bench.begin()
            if await bench.accept(tx, Note("m-1")):
                await bench.order(tx, "paid")
                await bench.add(tx, Event("payment.made", id="p-1"))
            await end(tx)
        assert ids(await bench.rows()) == ["p-1"]
        assert await bench.orders() == ["paid"]


class SavepointContract:
    """Required of an adapter whose driver has savepoints."""

    @pytest.mark.promise("G1", "W2")
    async def test_a_savepoint_takes_its_events_with_it(self, bench: SavepointBench) -> None:
        tx = await bench.begin()
        await bench.add(tx, Event("t", id="before"))
        savepoint = await bench.savepoint(tx)
        await bench.order(tx, "A")
        await bench.add(tx, Event("t", id="inside"))
        await bench.rollback_to(tx, savepoint)
        await bench.add(tx, Event("t", id="after"))
        await bench.commit(tx)
        assert ids(await bench.rows()) == ["before", "after"]
        assert await bench.orders() == []

    @pytest.mark.promise("G1", "W2")
    async def test_releasing_a_savepoint_commits_nothing(self, bench: SavepointBench) -> None:
        tx = await bench.begin()
        savepoint = await bench.savepoint(tx)
        await bench.order(tx, "A")
        await bench.add(tx, Event("t", id="inside"))
        await bench.release(tx, savepoint)
        assert await bench.rows() == []
        await bench.rollback(tx)
        assert await bench.rows() == []
        assert await bench.orders() == []

    @pytest.mark.promise("W9")
    async def test_a_savepoint_takes_strict_numbers_back(self, bench: SavepointBench) -> None:
        tx = await bench.begin()
        await bench.add(tx, Event("t", id="e-1", key="k"), ordering="strict")
        savepoint = await bench.savepoint(tx)
        await bench.add(tx, Event("t", id="x", key="k"), ordering="strict")
        await bench.rollback_to(tx, savepoint)
        await bench.add(tx, Event("t", id="e-2", key="k"), ordering="strict")
        await bench.commit(tx)
        assert numbers(await bench.rows()) == [("e-1", 1), ("e-2", 2)]

    @pytest.mark.promise("I1")
    async def test_a_savepoint_takes_an_accepted_message_back(self, bench: SavepointBench) -> None:
        tx = await bench.begin()
        savepoint = await bench.savepoint(tx)
        assert await bench.accept(tx, Note("m-1")) is True
        await bench.rollback_to(tx, savepoint)
        assert await bench.accept(tx, Note("m-1")) is True
        await bench.commit(tx)
