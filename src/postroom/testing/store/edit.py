"""The contract of edited dead letters: they are sent once, under another id."""

from __future__ import annotations

import asyncio

import pytest

from postroom.commands import AuditEntry, Edit
from postroom.errors import EventError, NotFoundError, PayloadError, ReplacedError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.model.envelope import REPLACES
from postroom.model.history import read
from postroom.record import Record, State
from postroom.store import Store
from postroom.testing.store.tools import Add, Another, Hand, event, names, needs


class EditContract:
    """`edit`: the same checks as `add`, and never both events."""

    @pytest.mark.promise("G7", "L7")
    async def test_an_edited_dead_letter_is_sent_under_another_id(
        self, store: Store, add: Add
    ) -> None:
        await add(
            Event(
                "t", {"to": "ada@"}, id="old", key="k", aggregate_type="a", topic="mails",
                headers={"tenant": "north", "wrong": "x"}, correlation_id="c", causation_id="cause",
                causation_path=[("shop", "ordered")], schema_version=3,
            ),
            event("later", "k"),
        )  # fmt: skip
        hand = await Hand(store).take()
        await hand.bury(await hand.only("old"))
        old = await store.get("old")
        assert old is not None
        headers = {"tenant": "south", "x": "\u017e"}
        new_id = await store.edit("old", Edit(b'{"to": "ada@b.c"}\n', headers=headers), by="anna")
        new = next(r for r in await hand.read() if r.id == new_id)
        assert (new.payload, new.headers) == (
            b'{"to": "ada@b.c"}', {**headers, REPLACES: "old"},
        )  # fmt: skip
        assert new == old._replace(
            seq=new.seq, id=new_id, payload=new.payload, headers_json=new.headers_json,
            created_us=new.created_us, state="pending", attempts=0, last_error=None,
        )  # fmt: skip
        assert new.seq > old.seq
        assert await store.get("old") == old
        assert (await store.look_up(["old"]))["old"].replaced_by == new_id
        details, fresh = await store.details("old"), await store.details(new_id)
        assert details is not None
        assert fresh is not None
        assert (details.replaced_by, fresh.replaced_by) == (new_id, None)
        told = [entry.get("error") for d in (details, fresh) for entry in read(d.history).entries]
        assert told == [f"sent as {new_id}", "replaces old"]
        assert [entry._replace(at_us=0) for entry in await store.audit_log(9)] == [
            AuditEntry("anna", "edit", 1, f"old: sent as {new_id}")
        ]
        assert await hand.work() == ["later", new_id]

    @pytest.mark.promise("G7", "L7")
    async def test_a_replaced_dead_letter_is_never_sent(self, store: Store, add: Add) -> None:
        await add(event("old", "k"), event("other", "m"))
        await store.bury(["old", "other"], "poison")
        new_id = await store.edit("old", Edit(b"{}"))
        assert await store.replay(["old", "other"]) == 1
        assert await store.replay(["old"], new_id=True) == 0
        with pytest.raises(ReplacedError, match=new_id) as refused:
            await store.edit("old", Edit(b"[]"))
        assert (refused.value.event_id, refused.value.replaced_by) == ("old", new_id)
        hand = await Hand(store).take()
        assert sorted(await hand.work()) == sorted(["other", new_id])
        assert await store.purge(["old"]) == 1

    @pytest.mark.promise("L7")
    async def test_a_replayed_event_cannot_be_edited(self, store: Store, add: Add) -> None:
        await add(event("again", "k"), event("done", "m"))
        hand = await Hand(store).take()
        await hand.settle(done=[await hand.only("done")])
        await store.bury(["again"], "poison")
        await store.replay(["again"])
        for name in ("again", "done", "no such"):
            with pytest.raises(NotFoundError, match=name):
                await store.edit(name, Edit(b"{}"), by="anna")
        assert names(await store.find(Filter())) == ["again", "done"]
        assert await store.audit_log(9) == []

    @needs("transactions")
    @pytest.mark.promise("L7")
    async def test_an_edit_and_a_replay_at_the_same_moment(
        self, store: Store, another: Another, add: Add
    ) -> None:
        """In both orders: exactly one of them sends the event."""
        other = await another()
        ids = [str(n) for n in range(8)]
        await add(*(event(name, name) for name in ids))
        await store.bury(ids, "poison")
        for n, name in enumerate(ids):
            work = [_edits(store, name), other.replay([name], new_id=n % 4 > 1)]
            changed = await asyncio.gather(*(work if n % 2 else reversed(work)))
            if n % 4 <= 1:  # a copy leaves a dead letter, which may be edited then
                assert sum(changed) == 1
        pending = [r.id for r in await store.find(Filter(state=State.PENDING))]
        for name in ids:
            replaced_by = (await store.look_up([name]))[name].replaced_by
            assert (replaced_by in pending) == (replaced_by is not None)
            assert name not in pending or replaced_by is None

    @needs("transactions")
    @pytest.mark.promise("B6", "W9")
    async def test_an_edited_strict_event_takes_number_and_place(
        self, store: Store, add: Add
    ) -> None:
        """Its consumers wait for the number. One that was skipped gets a new number."""
        await add(*(event(name, "k") for name in ("1", "2", "3")), strict=True)
        await store.bury(["1"], "poison")
        first = await store.edit("1", Edit(b'{"name": "new"}'))
        hand = await Hand(store).take()
        assert [(r.id, r.kseq) for r in await hand.read()] == [(first, 1), ("2", 2), ("3", 3)]
        grave = await store.get("1")
        assert grave is not None
        assert (grave.state, grave.kseq, grave.last_error, grave.data) == (
            "dead", 0, "poison", {"name": "1"},
        )  # fmt: skip
        await store.skip("2", "not now")
        second = await store.edit("2", Edit(b"{}"))
        assert [r.kseq for r in await hand.read()] == [1, 2, 3, 4]
        assert (await hand.read())[-1].id == second
        await add(event("5", "k"), strict=True)
        assert (await hand.only("5")).kseq == 5

    @pytest.mark.promise("G7")
    async def test_binary_payloads_and_tombstones(self, store: Store, add: Add) -> None:
        await add(
            Event("t", b"\x00\xff", id="bytes"), Event("t", id="stone", key="k", tombstone=True),
            Event("t", {"a": 1}, id="json", key="k", partition=3),
        )  # fmt: skip
        await store.bury(["bytes", "stone", "json"], "poison")

        async def sent(name: str, edit: Edit) -> Record:
            found = await store.get(await store.edit(name, edit))
            assert found is not None
            return found

        binary = await sent("bytes", Edit(b"\xfe\x00 \n"))
        assert (binary.payload, binary.content_type, binary.key) == (
            b"\xfe\x00 \n", "application/octet-stream", None,
        )  # fmt: skip
        plain = await sent("stone", Edit(headers={"h": "v"}))
        assert (plain.tombstone, plain.data, plain.headers["h"]) == (True, None, "v")
        await store.bury([plain.id], "poison")
        value = await sent(plain.id, Edit(b"1.10"))
        assert (value.tombstone, value.payload) == (False, b"1.10")
        assert value.headers == {"h": "v", REPLACES: plain.id}
        stone = await sent("json", Edit(tombstone=True))
        assert (stone.tombstone, stone.payload, stone.options) == (
            True, b"", {"tombstone": True, "partition": 3},
        )  # fmt: skip
        assert sorted(names(await Hand(store).read())) == sorted([binary.id, value.id, stone.id])

    @pytest.mark.promise("G7", "L7")
    async def test_what_add_refuses_is_refused(self, store: Store, add: Add) -> None:
        await add(event("old", "k"), Event("t", b"\xff", id="binary"))
        await store.bury(["old", "binary"], "poison")
        before = await store.find(Filter())
        for name, edit, error in (
            ("old", Edit(b"{"), PayloadError),
            ("old", Edit(b"\xff"), PayloadError),
            ("old", Edit(b'{"a": 1, "a": 2}'), PayloadError),
            ("old", Edit(b"NaN"), PayloadError),
            ("old", Edit(b'"\\ud800"'), PayloadError),
            ("old", Edit(b"[" * 5_000 + b"]" * 5_000), PayloadError),
            ("old", Edit(b'"' + b"x" * 900_000 + b'"'), PayloadError),
            ("binary", Edit(b"x" * 900_001), PayloadError),
            ("binary", Edit(content_type="application/json"), PayloadError),
            ("old", Edit(content_type=""), EventError),
            ("old", Edit(headers={"postroom-id": "x"}), EventError),
            ("old", Edit(headers={"": "x"}), EventError),
            ("old", Edit(headers={"a": "\x00"}), EventError),
            ("old", Edit(headers={"a": "x" * 20_000}), EventError),
            ("old", Edit(b"{}", tombstone=True), EventError),
            ("binary", Edit(tombstone=True), EventError),  # it has no key
        ):
            with pytest.raises(error):
                await store.edit(name, edit, by="anna")
        assert await store.find(Filter()) == before
        assert await store.audit_log(9) == []


async def _edits(store: Store, name: str) -> int:
    try:
        await store.edit(name, Edit(b"{}"))
    except NotFoundError:
        return 0
    return 1
