"""What strangers send to a topic: one odd record costs one record, and never the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid

import pytest
from cloudevents.core.bindings.kafka import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from postroom import Event, Handlers
from postroom.brokers.kafka import KafkaBroker
from postroom.engine.consumer import Consumer
from postroom.lookup import Filter
from postroom.sources.kafka import cluster
from postroom.sources.kafka.source import KafkaSource
from postroom.stores.memory import MemoryStore
from tests.contract.test_consumer_kafka import QUICK, KafkaWire
from tests.scenario.kafka_corpus import CORPUS, TYPE
from tests.scenario.kafka_place import make_topic, servers
from tests.scenario.place import MemoryPlace, until
from tests.servers import programs
from tests.servers.kafka_wire import RawRecord, send_raw
from tests.servers.process import wait_until

STREAM = "inbox.payments"
ALWAYS = 10 * 365 * 86_400 * 1_000 * 1_000  # of time stamps: as far away as you like


def good(name):
    return RawRecord(b"{}", name.encode(), [TYPE, (b"postroom-id", name.encode())])


def reading(url, topic, store, handlers, **options):
    """Return a consumer of a new group."""
    source = {name: options.pop(name) for name in ("group", "start") if name in options}
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


@pytest.mark.promise("G7", "F1")
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
from postroom.engine.consumer import Consumer
from postroom.sources.kafka.source import KafkaSource
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


# -- which message is it --------------------------------------------------------------------------
def kcat(url, topic, lines, *options):
    """Send lines as `key:body` by a program that was not written here."""
    subprocess.run(
        [str(programs.program("kcat")), "-P", "-b", servers(url), "-t", topic, "-K:", *options],
        input="".join(f"{line}\n" for line in lines).encode(), check=True, timeout=60,
    )  # fmt: skip


async def test_the_same_body_under_different_keys_is_not_the_same_message(
    kafka_url, store, caplog
):  # R-A4, I5
    topic, seen = make_topic(kafka_url, partitions=1), []
    lines = ['order-1:{"status":"paid"}', 'order-2:{"status":"paid"}', "order-1:", "order-2:"]
    await asyncio.to_thread(kcat, kafka_url, topic, [*lines, lines[0]], "-Z")
    handlers = Handlers(name="payments")

    @handlers.on(topic)
    async def note(event, tx):  # noqa: ARG001
        seen.append((event.key, event.payload, event.tombstone, event.data))

    async with reading(kafka_url, topic, store, handlers) as consumer:
        await until(lambda: consumer.counts.done == 5, 30)
    assert sorted(seen) == [
        ("order-1", b"", True, None),
        ("order-1", b'{"status":"paid"}', False, {"status": "paid"}),
        ("order-2", b"", True, None),
        ("order-2", b'{"status":"paid"}', False, {"status": "paid"}),
    ]
    assert consumer.counts.repeats == 1
    told = [r.getMessage() for r in caplog.records if "have no id" in r.getMessage()]
    assert len(told) == 1


@pytest.mark.parametrize("mode", ["direct", "durable"])
async def test_cloudevents_of_the_official_sdk(kafka_url, store, handlers, handled, mode):  # R-A5
    topic = make_topic(kafka_url, partitions=1)
    producer = Producer({"bootstrap.servers": servers(kafka_url), "log_level": 0})
    for convert in (to_binary_event, to_structured_event):
        for source in ("/shop/a", "/shop/b", "/shop/a"):
            event = CloudEvent(
                {
                    "id": f"42-{convert.__name__}", "source": source, "type": "order.created",
                    "datacontenttype": "application/json", "subject": "o-1", "partitionkey": "k",
                },
                data={"n": 1},
            )  # fmt: skip
            message = convert(event)
            producer.produce(topic, message.value, message.key, headers=message.headers)
    assert await asyncio.to_thread(producer.flush, 30) == 0
    async with reading(kafka_url, topic, store, handlers, mode=mode) as consumer:
        await until(lambda: len(handled) == 4 and not consumer.in_flight, 30)
    assert [e.id for e in handled] == [
        "/shop/a 42-to_binary_event", "/shop/b 42-to_binary_event",
        "/shop/a 42-to_structured_event", "/shop/b 42-to_structured_event",
    ]  # fmt: skip
    assert [(e.type, e.key, e.aggregate_id, e.data) for e in handled] == [
        ("order.created", "k", "o-1", {"n": 1})
    ] * 4
    assert await dead(store) == []


async def test_our_own_events_in_cloudevents_mode_have_the_same_id_on_both_sides(
    kafka_url, store, handlers, handled
):
    topic = make_topic(kafka_url, partitions=1)
    place = MemoryPlace()
    await place.write(Event("order.created", {"n": 1}, id="e-1", key="k", topic=topic))
    await place.relay(KafkaBroker(kafka_url, cloudevents="/shop")).drain()
    await place.close()
    async with reading(kafka_url, topic, store, handlers):
        await until(lambda: len(handled) == 1, 30)
    assert (handled[0].id, handled[0].type, handled[0].data) == ("e-1", "order.created", {"n": 1})


async def test_a_router_that_puts_the_id_into_a_header(kafka_url, store, handlers, handled):  # R-A4
    topic = make_topic(kafka_url, partitions=1)
    records = [
        RawRecord(b'{"n":1}', b"order-1", [(b"id", name), (b"eventType", b"order.created")])
        for name in (b"d-1", b"d-2", b"d-1")
    ]
    await asyncio.to_thread(send_raw, servers(kafka_url), topic, records)
    url = f"{kafka_url}?topic={topic}&group={topic}&id_header=id&type_header=eventType"
    async with Consumer(url, store, handlers) as consumer:
        await until(lambda: consumer.counts.done == 3, 30)
    assert ([e.id for e in handled], consumer.counts.repeats) == (["d-1", "d-2"], 1)


def make_again(url, topic, partitions=1):
    admin = AdminClient({"bootstrap.servers": servers(url), "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, within=30, what="gone")
    make_topic(url, partitions=partitions, name=topic)


async def test_a_topic_that_is_made_again_has_other_messages(
    kafka_url, store, handlers, handled
):  # R-A9
    """Offsets begin at 0 again; `[1]` and `[3]` are at the same place."""
    topic = make_topic(kafka_url, partitions=1)
    for bodies in ([b"[1]", b"[2]"], [b"[3]", b"[4]"]):
        if handled:
            await asyncio.to_thread(make_again, kafka_url, topic)
        records = [RawRecord(body, b"k", [TYPE]) for body in bodies]
        await asyncio.to_thread(send_raw, servers(kafka_url), topic, records)
        async with reading(
            kafka_url, topic, store, handlers, missing_id="offset", group=topic
        ) as consumer:
            await until(lambda c=consumer: c.counts.done == 2, 30)
    assert [e.payload for e in handled] == [b"[1]", b"[2]", b"[3]", b"[4]"]
    assert len({e.id for e in handled}) == 4


@pytest.mark.promise("G2", "F4")
@pytest.mark.parametrize(
    ("start", "count"), [("earliest", (2, 6)), ("earliest", (6, 6)), ("latest", (2, 6))]
)
async def test_a_topic_that_is_made_again_under_a_consumer_is_read_from_its_start(
    kafka_url, store, monkeypatch, caplog, start, count
):  # R-A9
    """If it gets more than the old one had, librdkafka would go on behind the third."""
    monkeypatch.setattr(cluster, "_LOOK_SECONDS", 0.2)
    wire, seen, release = KafkaWire(kafka_url), [], asyncio.Event()
    handlers = Handlers(name="payments")

    @handlers.on("order.created")
    async def charge(event, tx):  # noqa: ARG001
        if event.payload == b"[0, 2]":
            await release.wait()  # of the old topic: its end must not count in the new one
        seen.append(event.payload)

    async def send(count, first):
        for partition, many in enumerate(count):
            places = [(partition, first + n) for n in range(many)]
            records = [RawRecord(b"[%d, %d]" % each, b"%d-%d" % each, [TYPE]) for each in places]
            send = (send_raw, servers(kafka_url), wire.topic, records)
            await asyncio.to_thread(*send, partition=partition)

    source = KafkaSource(kafka_url, topic=wire.topic, group=wire.group, start=start, config=QUICK)
    async with Consumer(source, store, handlers, missing_id="offset") as consumer:
        await until(lambda: len(source._thread._partitions) == 2, 30)
        await send((3, 3), 0)
        await until(lambda: len(seen) == 5, 30)
        await asyncio.to_thread(make_again, kafka_url, wire.topic, 2)
        await send(count, 10)
        new = {b"[%d, %d]" % (p, 10 + n) for p, many in enumerate(count) for n in range(many)}
        await until(lambda: new <= set(seen), 30)
        release.set()
        await until(lambda: consumer.in_flight == 0)

        async def all_are_committed():
            return await wire.unacknowledged() == 0

        await until(all_are_committed, 30)
    assert "was deleted and created again; postroom reads it from the beginning" in caplog.text
    # Known by their places, those that came before it was noticed are handled twice.
    assert len(seen) <= 6 + sum(count) + 6


# -- in hand, and not done ------------------------------------------------------------------------
async def test_what_was_in_hand_of_a_new_group_is_not_lost(kafka_url, store):  # R-A6
    """With start=latest a member that dies before its first commit must leave its beginning."""
    topic, group, seen = make_topic(kafka_url, partitions=2), uuid.uuid4().hex, []
    hang = True
    handlers = Handlers(name="payments")

    @handlers.on("order.created")
    async def charge(event, tx):  # noqa: ARG001
        if hang:
            seen.append(event.id)
            await asyncio.Event().wait()
        seen.append(event.id)

    async def send(name):
        for partition in range(2):
            record = [good(f"{name}-{partition}")]
            await asyncio.to_thread(
                send_raw, servers(kafka_url), topic, record, partition=partition
            )

    await send("before the group")
    first = reading(kafka_url, topic, store, handlers, group=group, start="latest")
    await first.start()
    rounds = 0
    while len(seen) < 2:
        rounds += 1
        await send(f"m{rounds}")
    await first.kill()
    in_hand, hang = set(seen), False
    seen.clear()
    async with reading(kafka_url, topic, store, handlers, group=group, start="latest"):
        await until(lambda: in_hand <= set(seen), 60)
    assert not [name for name in seen if name.startswith("before")]


async def test_a_blocked_event_loop_fetches_no_more_than_enough(kafka_url):  # R-D6
    topic = make_topic(kafka_url, partitions=1)
    producer = Producer({"bootstrap.servers": servers(kafka_url), "log_level": 0})
    for _ in range(20_000):
        producer.produce(topic, b"{}")
    assert await asyncio.to_thread(producer.flush, 30) == 0
    source = KafkaSource(kafka_url, topic=topic, group=topic, config=QUICK)
    await source.open()
    try:  # from here on the loop does not run: these waits are not awaited
        wait_until(lambda: source._thread._held_back is True, within=30, what="partitions paused")
        assert 2_000 <= len(source._arrivals._waiting) <= 2_500
    finally:
        await source.close()


# -- too large (X-M3) -----------------------------------------------------------------------------
@pytest.mark.promise("G7")
@pytest.mark.parametrize("mode", ["direct", "durable"])
async def test_a_message_above_the_limit_is_a_dead_letter_without_its_body(
    kafka_url, store, handlers, handled, mode
):
    """A bomb of gzip passes the broker's limit; it counts as large as it is unpacked."""
    topic = make_topic(kafka_url, partitions=1)
    bomb = RawRecord(bytes(5_000_000), b"k", [TYPE, (b"postroom-id", b"bomb")])
    long_header = RawRecord(
        b"{}", b"k", [TYPE, (b"postroom-id", b"long"), (b"h", b"v" * 2_000_000)]
    )
    records = [good("before"), bomb, long_header, good("after")]
    await asyncio.to_thread(send_raw, servers(kafka_url), topic, records, gzipped=9)
    async with reading(
        kafka_url, topic, store, handlers, mode=mode, max_bytes=1_000_000
    ) as consumer:
        await until(lambda: len(handled) == 2 and consumer.counts.dead == 2, 30)
        found = {record.id.rpartition("/")[2]: record for record in await dead(store)}
        assert found.keys() == {"bomb", "long"}
        assert "it has 5000" in found["bomb"].last_error
        assert all(r.payload == b"" and len(r.headers_json) < 1_000 for r in found.values())
        await store.replay([found["bomb"].id])  # there is nothing to handle

        async def is_dead_again():
            return len(await dead(store)) == 2

        await until(is_dead_again, 30)
    assert [e.id for e in handled] == ["before", "after"]


async def test_what_cannot_be_unpacked_is_stepped_over(kafka_url, store, handlers, handled):
    """librdkafka refuses a bomb of zstd: it asked for it for ever, and nothing behind it came."""
    topic = make_topic(kafka_url, partitions=1)
    await asyncio.to_thread(send_raw, servers(kafka_url), topic, [good("before")])
    packing = {"compression.type": "zstd", "message.max.bytes": 50_000_000, "linger.ms": 1_000}
    packing["batch.size"] = 50_000_000  # both share one
    producer = Producer({"bootstrap.servers": servers(kafka_url), "log_level": 0, **packing})
    for body in (b"{}", bytes(20_000_000)):
        producer.produce(topic, body, "k")
    assert await asyncio.to_thread(producer.flush, 30) == 0
    await asyncio.to_thread(send_raw, servers(kafka_url), topic, [good("after")])
    small = {"receive.message.max.bytes": 2_000_000, "fetch.max.bytes": 1_000_000, **QUICK}
    source = KafkaSource(kafka_url, topic=topic, group=topic, config=small)
    async with Consumer(source, store, handlers) as consumer:
        await until(lambda: len(handled) == 2 and consumer.counts.dead == 2, 60)
    assert [e.id for e in handled] == ["before", "after"]
    reasons = sorted(record.last_error for record in await dead(store))
    assert [reason.split(":")[0] for reason in reasons] == [
        f"the record {topic}/0/1 cannot be decoded",
        f"the record {topic}/0/2 cannot be decoded",
    ]
