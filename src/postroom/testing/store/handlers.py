"""The contract of waking and of handlers' transactions (H3)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from postroom.outbox import Outbox
from postroom.store import Store
from postroom.testing.store.tools import (
    FAR,
    Another,
    Hand,
    event,
    names,
    needs,
    patience,
)


class _Refused(Exception):
    """Raised by a handler."""


class HandlerContract:
    """Transactions for handlers, and waking."""

    @pytest.mark.req("S5.7")
    @pytest.mark.promise("G6", "H3")
    async def test_a_handlers_transaction_commits_at_its_end(self, store: Store) -> None:
        async with store.transaction() as tx:
            await Outbox().add(tx, event("one"))
            await Outbox().add(tx, event("two"))
        assert sorted(names(await Hand(store).read())) == ["one", "two"]

    @pytest.mark.req("S5.7")
    @pytest.mark.promise("G6", "H3")
    async def test_a_handlers_transaction_rolls_back_on_an_error(self, store: Store) -> None:
        with suppress(_Refused):
            async with store.transaction() as tx:
                await Outbox().add(tx, event("lost"))
                raise _Refused
        async with store.transaction() as tx:
            await Outbox().add(tx, event("kept"))
        assert names(await Hand(store).read()) == ["kept"]

    @pytest.mark.promise("H3")
    async def test_several_handlers_can_ask_for_a_transaction_at_once(self, store: Store) -> None:
        async def handle(number: int) -> None:
            async with store.transaction() as tx:
                await Outbox().add(tx, event(f"e{number}"))

        async with patience():
            await asyncio.gather(*(handle(n) for n in range(20)))
        assert len(await Hand(store).read()) == 20

    @needs("notify")
    async def test_a_commit_elsewhere_ends_the_wait(
        self, store: Store, another: Another, write: object
    ) -> None:
        other = await another()
        async with patience():
            while await store.wait_for_change(0.0):
                pass
            waiting = asyncio.ensure_future(store.wait_for_change(FAR))
            await asyncio.sleep(0)
            async with other.transaction() as tx:
                await Outbox().add(tx, event("news"))
            assert await waiting is True

    @needs("notify")
    async def test_without_a_commit_the_wait_ends_by_itself(self, store: Store) -> None:
        async with patience():
            while await store.wait_for_change(0.0):
                pass
            assert await store.wait_for_change(0.05) is False

    @needs("notify")
    async def test_a_cancelled_wait_leaves_the_store_usable(self, store: Store) -> None:
        waiting = asyncio.ensure_future(store.wait_for_change(FAR))
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        assert await store.streams() == []
