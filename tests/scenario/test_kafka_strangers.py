"""What strangers send to a topic: one odd record costs one record, and never the process."""

from __future__ import annotations

import asyncio
import sys
import uuid

import pytest

from postroom import Handlers
from postroom.consumers import Consumer
from postroom.consumers.kafka import KafkaSource
from postroom.store import Filter
from postroom.stores.memory import MemoryStore
from tests.contract.test_consumer_kafka import QUICK
from tests.scenario.kafka_corpus import CORPUS, TYPE
from tests.scenario.kafka_place import make_topic, servers
from tests.scenario.place import until
from tests.servers.kafka_wire import RawRecord, send_raw

STREAM = "inbox.payments"
ALWAYS = 10 * 365 * 86_400 * 1_000 * 1_000  # of time stamps: as far away as you like


def good(name):
    return RawRecord(b"{}", name.encode(), [TYPE, (b"postroom-id", name.encode())])


def reading(url, topic, store, handlers, **options):
    """Return a consumer of a new group."""
    source = {
        name: options.pop(name) for name in ("group", "start", "max_bytes") if name in options
    }
    source.setdefault("group", uuid.uuid4().hex)
    return Consumer(
        KafkaSource(url, topic=topic, config=QUICK, **source), store, handlers, **options
    )


@pytest.fixture
def handled():
    return []


@pytest.fixture
def handlers(handled):
    handlers = Handlers(name="payments")

    @handlers.on("order.created")
    async def charge(event, tx):  # noqa: ARG001
        handled.append(event)

    return handlers


@pytest.fixture
async def store():
    store = MemoryStore()
    await store.open()
    return store


async def dead(store):
    return await store.find(Filter(stream=STREAM, state="dead", limit=1_000))


@pytest.mark.promise("G7")
@pytest.mark.parametrize("mode", ["direct", "durable"])
async def test_odd_records_cost_only_themselves(kafka_url, store, handlers, handled, mode):
    """X-C2, R-C1: each odd record has good neighbours in its batch, its partition, its poll."""
    topic = make_topic(
        kafka_url, partitions=2, message_timestamp_after_max_ms=ALWAYS, max_message_bytes=2_000_000
    )
    for n, odd in enumerate(CORPUS):
        records = [good(f"before-{odd.name}"), odd.record, good(f"after-{odd.name}")]
        await asyncio.to_thread(send_raw, servers(kafka_url), topic, records, partition=n % 2)
    consumer = reading(kafka_url, topic, store, handlers, mode=mode, missing_id="offset")
    async with consumer:
        buried = [odd for odd in CORPUS if odd.end != "handled"]
        well = 3 * len(CORPUS) - len(buried)
        await until(lambda: len(handled) == well and consumer.counts.dead == len(buried), 60)
    ids = {event.id for event in handled}
    for odd in CORPUS:
        assert {f"before-{odd.name}", f"after-{odd.name}"} <= ids
    reasons = sorted(record.last_error for record in await dead(store))
    expected = sorted(odd.end for odd in buried)
    for word in set(expected):
        assert sum(word in reason for reason in reasons) == expected.count(word), reasons


CRASHING = """
import asyncio, sys
from postroom import Handlers
from postroom.consumers import Consumer
from postroom.consumers.kafka import KafkaSource
from postroom.stores.memory import MemoryStore

url, topic, expected = sys.argv[1], sys.argv[2], int(sys.argv[3])
handlers = Handlers(name="payments")
done = asyncio.Event()
seen = set()

@handlers.on("order.created")
async def charge(event, tx):
    seen.add(event.id)

async def main():
    source = KafkaSource(url, topic=topic, group="g-" + topic)
    async with Consumer(source, MemoryStore(), handlers, missing_id="offset") as consumer:
        async with asyncio.timeout(60):
            while len(seen) + consumer.counts.dead < expected:
                await asyncio.sleep(0.02)
        print(len(seen), consumer.counts.dead)

asyncio.run(main())
"""


async def test_a_header_name_that_is_not_utf8_never_kills_the_process(kafka_url):
    """X-C2: many messages before the first one. The interpreter has specialized its calls by then,

    and the broken list of headers is handed out without an exception.
    """
    topic = make_topic(kafka_url, partitions=4)
    for partition in range(4):
        records = [good(f"{partition}-{n}") for n in range(500)]
        for place in (125, 250, 375):
            records[place] = RawRecord(b"{}", headers=[TYPE, (b"caf\xe9", b"1"), (b"more", b"2")])
        await asyncio.to_thread(send_raw, servers(kafka_url), topic, records, partition=partition)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "faulthandler", "-c", CRASHING, kafka_url, topic, "2000",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert (process.returncode, out.decode().split()) == (0, ["1988", "12"]), err.decode()[-2_000:]
