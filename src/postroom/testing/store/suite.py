"""The contract of a Store: the behaviour of every database, as tests to inherit.

    class TestMine(StoreContract):
        capabilities = Capabilities(notify=False)

        @pytest.fixture
        async def store(self): ...      # opened, migrated and empty

        @pytest.fixture
        async def another(self): ...    # makes one more Store object on the same data

        @pytest.fixture
        def write(self): ...            # store → an open transaction that Outbox.add accepts, as an
                                        # async context manager: commit at the end, or rollback

        @pytest.fixture
        def set_back(self): ...         # seconds → the store's clock is set back by as much

A store whose rows other programs can write also inherits `unreadable_rows.FlawContract` and
`strays.StrayContract`.

Tests of missing capabilities are left out at collection, never skipped. Pin each
store's capabilities by hand: one that is set to False must not make tests disappear unnoticed.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from postroom.event import Event
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.store import Capabilities, Store
from postroom.testing.store.audit import OversightContract
from postroom.testing.store.blocks import BlockContract
from postroom.testing.store.claims import ClaimContract
from postroom.testing.store.commands import CommandContract, WholeContract
from postroom.testing.store.controls import ControlContract, LimitContract, RetryNowContract
from postroom.testing.store.edit import EditContract
from postroom.testing.store.forget import ForgetContract
from postroom.testing.store.handlers import HandlerContract
from postroom.testing.store.history import HistoryContract
from postroom.testing.store.lanes import ClockContract, FenceContract, LaneContract
from postroom.testing.store.lookup import LookupContract
from postroom.testing.store.operations import OperationContract
from postroom.testing.store.port import PortContract
from postroom.testing.store.purge import PurgeContract
from postroom.testing.store.read import (
    FairStagingContract,
    ReadingContract,
    SchedulingContract,
)
from postroom.testing.store.receipts import ReceiptContract
from postroom.testing.store.search import SearchContract
from postroom.testing.store.set_back import NamingContract
from postroom.testing.store.settle import SettlingContract
from postroom.testing.store.tools import Add, Another, SetBack, Write, event, names, needs
from postroom.testing.store.waiting import WaitingContract
from postroom.testing.store.write import WritingContract


class LifeContract:
    """Opening, closing and creating the tables."""

    @pytest.mark.req("S4.1")
    async def test_the_tables_can_be_made_twice(self, store: Store, add: Add) -> None:
        await add(event("kept"))
        first = await store.migrate()
        assert await store.migrate() == first
        assert names(await store.find(Filter())) == ["kept"]

    @needs("shared")
    @pytest.mark.req("S4.1")
    async def test_the_tables_can_be_made_by_many_at_once(
        self, store: Store, another: Another
    ) -> None:
        stores = [store, *[await another() for _ in range(4)]]
        versions = await asyncio.gather(*(each.migrate() for each in stores))
        assert len(set(versions)) == 1

    @pytest.mark.promise("W9")
    async def test_the_outbox_has_an_id_of_its_own(self, store: Store, another: Another) -> None:
        first = await store.identity()
        assert len(first) >= 32
        await store.migrate()
        assert await (await another()).identity() == first

    async def test_closing_twice_is_safe(self, another: Another) -> None:
        store = await another()
        await store.close()
        await store.close()

    async def test_a_declared_capability_is_the_stores_own(self, store: Store) -> None:
        assert store.capabilities == getattr(self, "capabilities")  # noqa: B009 - on the subclass


class StoreContract(
    LifeContract,
    LaneContract,
    ClockContract,
    FenceContract,
    WritingContract,
    ReadingContract,
    SchedulingContract,
    FairStagingContract,
    HistoryContract,
    ReceiptContract,
    SettlingContract,
    ClaimContract,
    NamingContract,
    BlockContract,
    LookupContract,
    SearchContract,
    CommandContract,
    WholeContract,
    OversightContract,
    ControlContract,
    LimitContract,
    RetryNowContract,
    PurgeContract,
    WaitingContract,
    OperationContract,
    EditContract,
    ForgetContract,
    HandlerContract,
    PortContract,
):
    """Everything that the engine relies on. Inherit it and provide the four fixtures."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name in dir(cls):
            wanted = getattr(getattr(cls, name), "postroom_needs", ())
            if not all(getattr(cls.capabilities, capability) for capability in wanted):
                setattr(cls, name, None)  # pytest collects functions only

    @pytest.fixture
    async def store(self) -> Store:
        raise NotImplementedError("give a fixture `store`: opened, migrated and empty")

    @pytest.fixture
    async def another(self) -> Another:
        raise NotImplementedError("give a fixture `another`: a factory of stores on the same data")

    @pytest.fixture
    def write(self) -> Write:
        raise NotImplementedError("give a fixture `write`: store → a transaction to add in")

    @pytest.fixture
    def set_back(self) -> SetBack:
        raise NotImplementedError("give a fixture `set_back`: sets the store's clock back")

    @pytest.fixture
    def add(self, store: Store, write: Write) -> Add:
        async def add(*events: Event, strict: bool = False) -> None:
            async with write(store) as tx:
                await Outbox(ordering="strict" if strict else "keyed").add_many(tx, events)

        return add
