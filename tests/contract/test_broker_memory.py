"""The memory broker keeps the contract of brokers."""

from __future__ import annotations

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker
from postroom.testing.broker import Arrival, BrokerContract


class TestMemoryBroker(BrokerContract):
    abilities = frozenset({"refuse", "hold", "outage", "any_topic"})

    @pytest.fixture
    async def broker(self):
        broker = MemoryBroker()
        await broker.open()
        yield broker
        await broker.close()

    @pytest.fixture
    def arrived(self, broker):
        async def read():
            return [
                Arrival(m.record.id, m.record.type, m.topic, m.record.key, m.record.payload)
                for m in broker.messages
            ]

        return read

    @pytest.fixture
    def refuse(self, broker):
        refused = set()
        broker.script(lambda r: Outcome(Verdict.FAILED, "scripted") if r.id in refused else None)

        def refuse(record):
            refused.add(record.id)
            return record

        return refuse

    @pytest.fixture
    def hold(self, broker):
        return lambda record: broker.hold(lambda r: r.id == record.id)

    @pytest.fixture
    def outage(self, broker):
        return broker.go_down, broker.come_back


class TestMemoryBrokerWithALimit(TestMemoryBroker):
    abilities = frozenset({"max_bytes"})

    @pytest.fixture
    async def broker(self):
        broker = MemoryBroker(max_bytes=200_000)
        await broker.open()
        yield broker
        await broker.close()


def test_the_contract_leaves_out_only_what_the_abilities_say():
    tests = {name for name in dir(BrokerContract) if name.startswith("test_")}
    here = {name for name in tests if getattr(TestMemoryBroker, name) is not None}
    assert tests - here == {
        "test_a_start_is_told_for_each_record_that_starts",
        "test_what_never_started_is_not_told_as_started",
        "test_a_lost_lane_keeps_its_records_from_starting",
        "test_what_is_too_large_is_rejected_and_its_neighbours_are_not",
    }
