"""Kafka keeps the contract of brokers: on a real one, behind a proxy that can take it away."""

from __future__ import annotations

import os

import pytest

from postroom.broker import BrokerCapabilities
from postroom.brokers.kafka import KafkaBroker
from postroom.testing.broker import Arrival, BrokerContract
from tests.scenario.kafka_place import kafka_behind_a_proxy, make_topic, tap

pytestmark = pytest.mark.server
LIMIT = 200_000


@pytest.fixture(scope="module")
def place():
    with kafka_behind_a_proxy() as (_, proxy, url):
        yield proxy, url


class TestKafka(BrokerContract):
    abilities = frozenset({"refuse", "outage"})
    options = {"publish_seconds": 5}  # enough for a busy machine to confirm what can be confirmed

    @pytest.fixture(autouse=True)
    def own_topic(self, place, monkeypatch):
        _, url = place
        monkeypatch.setattr(type(self), "topic", make_topic(url, max_message_bytes=LIMIT))

    @pytest.fixture
    async def broker(self, place):
        _, url = place
        broker = KafkaBroker(url, answer_seconds=4, **self.options)
        await broker.open()
        yield broker
        await broker.close()

    @pytest.fixture
    def arrived(self, place):
        _, url = place

        async def read():
            return [
                Arrival(m.id, m.header("postroom-type"), m.topic, m.key, m.value)
                for m in tap(url, self.topic, committed=True)
            ]

        return read

    @pytest.fixture
    def refuse(self):
        return lambda record: record._replace(payload=os.urandom(LIMIT))  # no compression helps

    @pytest.fixture
    def outage(self, place):
        proxy, _ = place
        yield proxy.refuse, proxy.accept
        proxy.accept()

    def test_capabilities(self, broker):
        assert broker.capabilities == BrokerCapabilities()


class TestKafkaInTransactions(TestKafka):
    abilities = TestKafka.abilities
    options = {"delivery": "transactional", "publish_seconds": 12}  # a producer for each lane

    def test_capabilities(self, broker):
        assert broker.capabilities == BrokerCapabilities(transactional=True)


def test_the_contract_leaves_out_only_what_the_abilities_say():
    tests = {name for name in dir(BrokerContract) if name.startswith("test_")}
    here = {name for name in tests if getattr(TestKafka, name) is not None}
    assert tests - here == {
        # No single message can be stopped on its way to a real broker.
        "test_a_hung_key_stops_no_other",
        "test_a_cancelled_publish_ends_and_reports_nothing_more",
        "test_a_start_is_told_for_each_record_that_starts",
        "test_what_never_started_is_not_told_as_started",
        "test_a_lost_lane_keeps_its_records_from_starting",
        "test_what_is_too_large_is_rejected_and_its_neighbours_are_not",
        "test_hostile_topics_arrive_as_they_are",
    }
