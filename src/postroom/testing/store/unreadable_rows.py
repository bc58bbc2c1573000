"""The contract of a Store: a row that cannot become a record costs one event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import NotFoundError
from postroom.lookup import Filter
from postroom.record import State
from postroom.retry import Constant, RetryPolicy
from postroom.settlement import DeadOutcome, FailedOutcome
from postroom.store import Store
from postroom.testing.store.tools import Add, Hand, event, until

Spoil = Callable[[str, Any], Awaitable[None]]
"""Writes a flaw into the row of the event with this id, bypassing every check."""


class FlawContract:
    """Rows that were written manually, by another program, or are damaged.

    flaws     what the fixture `spoil` writes → text of the dead letter's error
    odd_ids   the same, for ids that are not text, if the store can hold such
    waiting   what is written to rows that wait for their time
    """

    flaws: ClassVar[Mapping[str, str]] = {}
    odd_ids: ClassVar[Mapping[str, str]] = {}
    waiting: ClassVar[Sequence[str]] = ()
    odd_id: ClassVar[str] = ""  # the same for an id that is not text; empty: not possible

    @pytest.fixture
    def spoil(self) -> Spoil:
        raise NotImplementedError("give a fixture `spoil`: (id, flaw) → the row, with the flaw")

    @pytest.mark.promise("G7", "F1")
    async def test_a_row_that_cannot_be_a_record_costs_one_event(
        self, store: Store, add: Add, spoil: Spoil
    ) -> None:
        for n in range(len(self.flaws)):
            await add(event(f"a{n}", f"k{n}"), event(f"b{n}", f"k{n}"), event(f"c{n}", f"k{n}"))
            await add(event(f"lone{n}"))
        for n, flaw in enumerate(self.flaws):
            await spoil(f"b{n}", flaw)
        broker = MemoryBroker()
        quick = RetryPolicy(backoff=Constant(0.01))
        async with Relay(store, broker, poll_seconds=0.02, retry=quick) as relay:
            await until(_holds(lambda: relay.counts.done == 3 * len(self.flaws)))
            await until(_holds(lambda: relay.counts.dead == len(self.flaws)))
            sent = [message.record.id for message in broker.messages]
            for n, word in enumerate(self.flaws.values()):
                assert [i for i in sent if i in (f"a{n}", f"b{n}", f"c{n}")] == [f"a{n}", f"c{n}"]
                buried = await store.get(f"b{n}")
                assert buried is not None
                assert (buried.state, buried.attempts) == (State.DEAD, 1), word
                assert buried.last_error is not None
                assert word in buried.last_error
            assert len(sent) == 3 * len(self.flaws)

    async def test_an_id_that_is_no_text_is_settled_all_the_same(
        self, store: Store, add: Add, spoil: Spoil
    ) -> None:
        if not self.odd_id:
            return
        await add(event("odd", "k"), event("next", "k"), event("other", "o"))
        await spoil("odd", self.odd_id)
        hand = await Hand(store).take()
        odd = next(record for record in await hand.read() if record.flaw is not None)
        await hand.settle(failed=[FailedOutcome(odd, 1, 0.0, "boom")])
        assert (await store.stats()).blocked_keys == 1
        await until(hand.stage)
        odd = next(record for record in await hand.read() if record.flaw is not None)
        settlement = hand.settlement(
            dead=[DeadOutcome(odd, 2, "boom")], done=[await hand.only("other")]
        )
        await store.settle(settlement)
        assert settlement.missing == []
        assert (await store.stats()).counts[State.DEAD] == 1
        assert [record.id for record in await hand.read()] == ["next"]

    @pytest.mark.parametrize("keep_done_seconds", [0, 3_600])
    async def test_a_row_whose_id_is_no_text_costs_one_event(
        self, store: Store, add: Add, spoil: Spoil, keep_done_seconds: float
    ) -> None:
        """It can be addressed only by its number and its bytes, also where it blocks its key."""
        for n, flaw in enumerate(self.odd_ids):
            await add(event(f"a{n}", f"k{n}"), event(f"b{n}", f"k{n}"), event(f"c{n}", f"k{n}"))
            await spoil(f"b{n}", flaw)
        broker = MemoryBroker()
        async with Relay(
            store, broker, poll_seconds=0.02, keep_done_seconds=keep_done_seconds
        ) as relay:
            await until(_holds(lambda: relay.counts.done == 2 * len(self.odd_ids)))
            await until(_holds(lambda: relay.counts.dead == len(self.odd_ids)))
            dead = await store.find(Filter(state=State.DEAD))
        for record, words in zip(dead, self.odd_ids.values(), strict=True):
            assert record.last_error is not None
            assert words in record.last_error

    @pytest.mark.promise("F1", "B6")
    async def test_a_row_that_cannot_be_a_record_is_replayed_or_skipped_like_any_other(
        self, store: Store, add: Add, spoil: Spoil
    ) -> None:
        """Replayed unchanged, like the others; skipped, if a marker can be sent in its place."""
        for n, flaw in enumerate(self.flaws):
            await add(event(f"a{n}", f"k{n}"), event(f"b{n}", f"s{n}"), strict=True)
            await spoil(f"a{n}", flaw)
            await spoil(f"b{n}", flaw)
        await add(event("good", "k"))
        odd = [f"a{n}" for n in range(len(self.flaws))]
        assert await store.bury([*odd, "good"], "no use") == len(odd) + 1
        assert await store.replay([*odd, "good"], new_id=True) == len(odd) + 1
        assert await store.replay([*odd, "good"]) == len(odd) + 1
        skipped = 0
        for n, word in enumerate(self.flaws.values()):
            try:
                await store.skip(f"b{n}", "not wanted")
            except NotFoundError as error:
                assert word in str(error)
            else:
                skipped += 1
        found = await store.find(Filter(limit=1_000))
        markers = [record for record in found if record.type == "postroom.skipped"]
        assert len(markers) == skipped
        assert [record.flaw for record in markers] == [None] * skipped
        assert "good" in {record.id for record in found if record.state == State.PENDING}

    async def test_a_row_that_waits_for_no_time_holds_up_nobody(
        self, store: Store, add: Add, spoil: Spoil
    ) -> None:
        soon, later = (datetime.now(UTC) + timedelta(seconds=n) for n in (0.3, 3_600))
        for n, flaw in enumerate(self.waiting):
            await add(event(f"late{n}", f"k{n}", available_at=later))
            await spoil(f"late{n}", flaw)
        await add(*(event(f"soon{n}", f"s{n}", available_at=soon) for n in range(64)))
        broker = MemoryBroker()
        async with Relay(store, broker, poll_seconds=0.02):

            async def all_sent() -> bool:
                return {f"soon{n}" for n in range(64)} <= {m.record.id for m in broker.messages}

            await until(all_sent)
            assert (await store.stats()).lag_seconds >= 0

    async def test_a_row_that_cannot_be_a_record_can_be_looked_at(
        self, store: Store, add: Add, spoil: Spoil
    ) -> None:
        for n, flaw in enumerate(self.flaws):
            await add(event(f"b{n}", "k"))
            await spoil(f"b{n}", flaw)
        await add(event("good", "k"))
        found = {record.id: record for record in await store.find(Filter())}
        assert found["good"].flaw is None
        for n, word in enumerate(self.flaws.values()):
            for record in (found[f"b{n}"], await store.get(f"b{n}")):
                assert record is not None
                assert record.flaw is not None
                assert word in record.flaw
                assert dict(record.headers) == {}
                assert record.causation_path == ()
                assert record.created_at <= record.created_at  # a date at all
            assert await store.details(f"b{n}") is not None
        stats = await store.stats()
        assert stats.counts[State.PENDING] == len(self.flaws) + 1
        assert stats.lag_seconds >= 0
        await store.bury([f"b{n}" for n in range(len(self.flaws))], "no use")
        assert sum(cause.how_many for cause in await store.dead_causes()) == len(self.flaws)
        assert len(await store.find(Filter(state=State.DEAD))) == len(self.flaws)


def _holds(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return condition()

    return look
