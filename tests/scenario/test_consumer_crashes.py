"""SIGKILL between every pair of steps: each effect once, nothing lost, the order of keys kept.

The steps of a message are receive, begin, accept, effect, commit, ack; of messages that share a
transaction: receive, begin, (accept, effect) for each, count, commit, ack for each. A process dies
right after one of them; the next one goes on.
"""

import pytest

from tests.contract.test_consumer_kafka import QUICK, KafkaWire
from tests.contract.test_consumer_rabbitmq import RabbitWire, Sender
from tests.scenario.consumer_place import Ledger, consumer, orders
from tests.scenario.place import until
from tests.scenario.postgres_place import own_schema
from tests.scenario.rabbit import fresh

pytestmark = pytest.mark.slow

KEYS, EACH = "ab", 3
EXPECTED = {"a": ["a-1", "a-2", "a-3"], "b": ["b-1", "b-2", "b-3"]}
EVERY_ID = ["a-1", "a-2", "a-3", "b-1", "b-2", "b-3"]
DIRECT = ["receive:1", "begin:2", "accept:2", "effect:2", "commit:2", "ack:2"]
SHARED = [
    "receive:1", "begin:1", "accept:1", "effect:1", "next-accept:1", "next-effect:1", "look:1",
    "next-commit:1", "next-ack:1",
]  # fmt: skip
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


async def die_and_go_on(ledger, wire, url, step, *options):
    await wire.send(*orders(KEYS, EACH))
    async with consumer(ledger, url, *options, "--die", step) as first:
        assert await first.ended() == -9
    assert len(ledger.effects()) < len(EVERY_ID)  # it died in the middle
    async with consumer(ledger, url, *options) as second:
        await until(lambda: len(ledger.effects()) >= len(EVERY_ID))
        # Messages that the first one kept are done before they come again.
        await until(lambda: nothing_left(wire))
        assert await second.stop() == 0
    assert ledger.by_key() == EXPECTED
    assert ledger.caused() == EVERY_ID
    assert ledger.inbox() == EVERY_ID
    assert await wire.left() == 0


async def nothing_left(wire):
    return await wire.left() == 0


async def die_again_and_again(ledger, wire, url):
    """One process after the other dies in a transaction that several messages share."""
    await wire.send(*orders("abcd", 10))
    for step in SHARED:
        async with consumer(ledger, url, "--batch", "10", "--die", step) as doomed:
            assert await doomed.ended() == -9
    async with consumer(ledger, url, "--batch", "10") as last:
        await until(lambda: len(ledger.effects()) >= 40)
        assert await last.stop() == 0
    by_key = {key: [f"{key}-{n}" for n in range(1, 11)] for key in "abcd"}
    every_id = sorted(each for ids in by_key.values() for each in ids)
    assert ledger.by_key() == by_key
    assert ledger.caused() == every_id
    assert ledger.inbox() == every_id
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
        await die_and_go_on(ledger, wire, f"{wire.url}?queue={wire.queue}", step)

    @pytest.mark.req("S3.4", "S3.5", "S5.4", "S5.7")
    @pytest.mark.promise("G1", "G6")
    async def test_shared(self, ledger, wire):
        await die_again_and_again(ledger, wire, f"{wire.url}?queue={wire.queue}")

    @pytest.mark.req("S3.5")
    @pytest.mark.promise("G1", "G2", "G6")
    @pytest.mark.parametrize("step", DURABLE)
    async def test_durable(self, ledger, wire, step):
        await die_and_go_on(
            ledger, wire, f"{wire.url}?queue={wire.queue}", step, "--mode", "durable"
        )


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
        await die_and_go_on(ledger, wire, url, step)

    @pytest.mark.req("S3.4", "S3.5", "S5.7")
    @pytest.mark.promise("G1", "G6")
    async def test_shared(self, ledger, wire, url):
        await die_again_and_again(ledger, wire, url)

    @pytest.mark.req("S3.5")
    @pytest.mark.promise("G1", "G2", "G6")
    @pytest.mark.parametrize("step", ["commit:1", "ack:1", "effect:2"])
    async def test_durable(self, ledger, wire, url, step):
        await die_and_go_on(ledger, wire, url, step, "--mode", "durable")
