"""SIGKILL between every pair of steps: each effect once, nothing lost, the order of keys kept.

The steps of a message are receive, begin, accept, effect, commit, ack. A process dies right after
one of them; the next one goes on.
"""

import pytest

from tests.contract.test_consumer_kafka import QUICK, KafkaWire
from tests.contract.test_consumer_rabbitmq import RabbitWire, Sender
from tests.scenario.consuming import Ledger, consumer, orders
from tests.scenario.place import until
from tests.scenario.postgres_place import own_schema
from tests.scenario.rabbit import fresh

pytestmark = pytest.mark.slow

KEYS, EACH = "ab", 3
EXPECTED = {"a": ["a-1", "a-2", "a-3"], "b": ["b-1", "b-2", "b-3"]}
EVERY_ID = ["a-1", "a-2", "a-3", "b-1", "b-2", "b-3"]
DIRECT = ["receive:1", "begin:2", "accept:2", "effect:2", "commit:2", "ack:2"]
# Kept in one transaction, acknowledged, then handled in transactions of their own.
DURABLE = [
    "receive:1",
    "begin:1",
    "commit:1",
    "ack:1",
    "begin:3",
    "accept:2",
    "effect:2",
    "commit:3",
]


@pytest.fixture
async def ledger(postgres_url):
    with own_schema(postgres_url) as url:
        yield await Ledger(url).create()


async def die_and_go_on(ledger, wire, url, step, mode):
    await wire.send(*orders(KEYS, EACH))
    async with consumer(ledger, url, "--mode", mode, "--die", step) as first:
        assert await first.ended() == -9
    assert len(ledger.effects()) < len(EVERY_ID)  # it died in the middle
    async with consumer(ledger, url, "--mode", mode) as second:
        await until(lambda: len(ledger.effects()) >= len(EVERY_ID))
        assert await second.stop() == 0
    assert ledger.by_key() == EXPECTED
    assert ledger.caused() == EVERY_ID
    assert ledger.inbox() == EVERY_ID
    assert await wire.left() == 0


class TestRabbitmq:
    @pytest.fixture
    async def wire(self, rabbitmq_url):
        async with Sender(rabbitmq_url) as sender:
            queue = fresh("crash")
            await sender.queue(queue, **{"x-single-active-consumer": True})
            yield RabbitWire(rabbitmq_url, sender, queue)

    @pytest.mark.req("S3.4", "S3.5", "S5.4", "S5.7")
    @pytest.mark.promise("G1", "G6")
    @pytest.mark.parametrize("step", DIRECT)
    async def test_direct(self, ledger, wire, step):
        await die_and_go_on(ledger, wire, f"{wire.url}?queue={wire.queue}", step, "direct")

    @pytest.mark.req("S3.5")
    @pytest.mark.promise("G1", "G2", "G6")
    @pytest.mark.parametrize("step", DURABLE)
    async def test_durable(self, ledger, wire, step):
        await die_and_go_on(ledger, wire, f"{wire.url}?queue={wire.queue}", step, "durable")


class TestKafka:
    @pytest.fixture
    def url(self, wire):
        # A member with a name of its own comes back at once; its successor need not wait.
        options = {**QUICK, "group.instance.id": "the-one"}
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"{wire.url}?topic={wire.topic}&group={wire.group}{more}"

    @pytest.fixture
    async def wire(self, kafka_url):
        return KafkaWire(kafka_url)

    @pytest.mark.req("S3.4", "S3.5", "S5.7")
    @pytest.mark.promise("G1", "G6")
    @pytest.mark.parametrize("step", DIRECT)
    async def test_direct(self, ledger, wire, url, step):
        await die_and_go_on(ledger, wire, url, step, "direct")

    @pytest.mark.req("S3.5")
    @pytest.mark.promise("G1", "G2", "G6")
    @pytest.mark.parametrize("step", ["commit:1", "ack:1", "effect:2"])
    async def test_durable(self, ledger, wire, url, step):
        await die_and_go_on(ledger, wire, url, step, "durable")
