"""The contract of claims: an effect that the store has lost is not settled as done.

A relay was told that a handler's transaction is committed. The store that settles the event may be
another one by then: a replica that lagged and was promoted, or a backup.
"""

from __future__ import annotations

import pytest

from postroom.record import Record
from postroom.store import Store
from postroom.testing.store.tools import ALL, Add, Another, Hand, event, keys_of_lane, needs
from postroom.transaction import Acceptance, Claim, Counter, Proof
from postroom.transactions import resolve

ODD = 'a"b\\c, {d} ž'


def mark(name: str, consumer: str = "shop/charge") -> Acceptance:
    """The inbox row that the handler `charge` writes for an event."""
    return Acceptance(consumer, name, "tested", None)


def claim(record: Record, proof: Proof | None = None) -> Claim:
    """The claim of a relay about an event that it has handled."""
    return Claim(record.lane, record.id, proof or mark(record.id))


async def accept(store: Store, *marks: Acceptance) -> None:
    """Let handlers take effect."""
    for each in marks:
        async with store.transaction() as tx:
            assert await resolve(tx, prefix=store.tables.qualified).accept(each)


class ClaimContract:
    """A settle finds the effects of its events, or changes nothing in their lanes."""

    @pytest.mark.promise("G2", "G6", "H5")
    @pytest.mark.parametrize("keep_done", [True, False])
    async def test_an_effect_that_is_there_is_settled(
        self, store: Store, add: Add, keep_done: bool
    ) -> None:
        await add(event("e", "k"), event(ODD, "odd"))
        await accept(store, mark("e"), mark(ODD))
        hand = await Hand(store).take()
        records = await hand.read()
        held = await hand.settle(
            done=records, claims=[claim(each) for each in records], keep_done=keep_done
        )
        assert held == set(ALL)
        assert await hand.read() == []

    @pytest.mark.promise("G2", "G6", "H5")
    @pytest.mark.parametrize("keep_done", [True, False])
    async def test_an_effect_that_was_lost_is_not_settled(
        self, store: Store, add: Add, keep_done: bool
    ) -> None:
        """Its lane is left alone; the others are settled."""
        await add(event("lost", "k"), event("there", "not k"))
        await accept(store, mark("there"), mark("lost", "shop/another handler"), mark("other"))
        hand = await Hand(store).take()
        records = {record.id: record for record in await hand.read()}
        claims = [claim(each) for each in records.values()]
        held = await hand.settle(done=list(records.values()), claims=claims, keep_done=keep_done)
        assert held == set(ALL) - {records["lost"].lane}
        assert [record.id for record in await hand.read()] == ["lost"]

    @pytest.mark.promise("G4", "H5")
    async def test_nothing_is_begun_in_a_lane_that_has_lost_an_effect(
        self, store: Store, add: Add
    ) -> None:
        """The later events of a key wait for the one whose effect must be repeated."""
        first, other = keys_of_lane(7, 2)
        await add(event("lost", first), event("next", first), event("done", other))
        await accept(store, mark("done"))
        hand = await Hand(store).take()
        records = {record.id: record for record in await hand.read()}
        await hand.settle(starts=[records["lost"]])
        held = await hand.settle(
            done=[records["done"]],
            starts=[records["next"]],
            claims=[claim(records["done"]), claim(records["lost"])],
        )
        assert held == set(ALL) - {7}
        found = {record.id: record.state for record in await hand.read()}
        assert found == {"lost": "processing", "next": "pending", "done": "pending"}

    async def test_what_was_lost_is_told(self, store: Store, add: Add) -> None:
        await add(event("e", "k"))
        hand = await Hand(store).take()
        record = await hand.only("e")
        settlement = hand.settlement(done=[record], claims=[claim(record)])
        await store.settle(settlement)
        assert settlement.lost == [claim(record)]
        await accept(store, mark("e"))
        assert await store.settle(settlement) == set(ALL)
        assert settlement.lost == []

    async def test_a_claim_in_a_lane_that_is_not_held_is_not_told(
        self, store: Store, add: Add, another: Another
    ) -> None:
        await add(event("e", "k"))
        hand = await Hand(store).take()
        record = await hand.only("e")
        await (await another()).release("main", "anna", hand.held)
        settlement = hand.settlement(done=[record], claims=[claim(record)])
        assert await store.settle(settlement) == set()
        assert settlement.lost == []

    @needs("transactions")
    async def test_the_mark_of_a_strict_key_must_have_come_to_its_number(
        self, store: Store, add: Add
    ) -> None:
        await add(event("1", "k"), event("2", "k"))
        hand = await Hand(store).take()
        one, two = await hand.read()
        reached = Counter(f"in/{ODD}", one.key_hash, 1)
        async with store.transaction() as tx:
            await resolve(tx, prefix=store.tables.qualified).count_up([reached])
        assert await hand.settle(done=[one], claims=[claim(one, reached)]) == set(ALL)
        beyond = claim(two, reached._replace(step=2))
        assert await hand.settle(done=[two], claims=[beyond]) == set(ALL) - {two.lane}
        elsewhere = claim(two, reached._replace(topic="in/another"))
        assert await hand.settle(done=[two], claims=[elsewhere]) == set(ALL) - {two.lane}

    async def test_a_store_says_what_it_holds(self, store: Store) -> None:
        await accept(store, mark("a"), mark(ODD, ODD))
        asked = [mark("b"), mark("a"), mark(ODD, ODD), mark("a", ODD), mark("a")]
        assert await store.holds(asked) == {1, 2, 4}
        assert await store.holds([]) == set()
