"""What arrived: read from the destination itself, in the order of arrival, by plain clients."""

from __future__ import annotations

import asyncio
import json
import uuid

from tests.torture.marks import is_marked
from tests.torture.worlds import number_of, size_of

TOPIC_LIMIT = 400_000  # bytes
QUIET_SECONDS = 30  # after which nothing more is to be expected


class HandlersTap:
    """Handlers in the relays' own processes: there is nothing in between that could be read."""

    kind = "handlers"
    oversize = 0
    url = "handlers:tests.torture.effects:handlers"

    def prepare(self):
        pass

    def arrivals(self):
        return []


class KafkaTap:
    kind = "kafka"
    oversize = TOPIC_LIMIT * 3 // 2
    # After a kill of the broker a group may wait for ghosts, as long as a member may take to poll.
    source = (
        "topic=torture,foreign&group=torture&id_header=id&type_header=eventType"
        "&session.timeout.ms=6000&max.poll.interval.ms=10000"
    )

    def __init__(self, url, replicas=1):
        self.servers = url.removeprefix("kafka://")
        self.replicas = replicas
        self.url = url

    def prepare(self):
        from confluent_kafka.admin import AdminClient, NewTopic

        limits = {"max.message.bytes": str(TOPIC_LIMIT), "retention.ms": "-1"}
        limits["message.timestamp.after.max.ms"] = str(2**63 - 1)  # others send any time stamp
        topics = [
            NewTopic(name, num_partitions=3, replication_factor=self.replicas, config=limits)
            for name in ("torture", "foreign")
        ]
        admin = AdminClient({"bootstrap.servers": self.servers})
        for future in admin.create_topics(topics).values():
            future.result(30)

    def arrivals(self):
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": str(uuid.uuid4()),
             "enable.auto.commit": False, "isolation.level": "read_committed",
             "enable.partition.eof": True}
        )  # fmt: skip
        found = []
        for partition in range(3):
            consumer.assign([TopicPartition("torture", partition, 0)])
            while True:
                message = consumer.poll(QUIET_SECONDS)
                if message is None:
                    raise TimeoutError(f"partition {partition} does not end")
                if message.error():  # the end of the partition
                    break
                found.append(_arrival(dict(message.headers()), message.value()))
        consumer.close()
        return list(filter(None, found))


def _arrival(headers, body):
    return _content(headers["postroom-id"].decode(), body, headers)


def _content(event_id, body, headers):
    """Return what is known of a message of ours; None if it is another's."""
    if is_marked(event_id):
        return None
    data = json.loads(body)
    number = number_of(data, headers.get("postroom-kseq"))
    return event_id, data["k"], number, size_of(event_id, data["padding"])


class RabbitTap:
    """Two queues with the same messages: one for the consumers, one for the checker."""

    kind = "rabbitmq"
    oversize = 0  # it takes everything
    # A quorum queue on one node of RabbitMQ 3.10 may find no leader after a kill.
    destination = "exchange=torture&queue=torture&queue_type=classic"
    source = "queue=inbox&prefetch=100"

    def __init__(self, url):
        self.url = url

    def prepare(self):
        asyncio.run(self._do(_declare))
        self.bind()

    def bind(self):
        asyncio.run(self._do(_bind))

    def unbind(self):
        asyncio.run(self._do(_unbind))

    def arrivals(self):
        return list(filter(None, asyncio.run(self._do(_drain))))

    async def _do(self, work):
        import aio_pika

        async with await aio_pika.connect(self.url, timeout=QUIET_SECONDS) as connection:
            return await work(await connection.channel())


async def _declare(channel):
    # By way of an exchange of its own, so that one binding decides for both queues.
    await channel.declare_exchange("torture", "topic", durable=True)
    copies = await channel.declare_exchange("copies", "fanout", durable=True)
    foreign = await channel.declare_exchange("foreign", "fanout", durable=True)
    for name, arguments in (("torture", {}), ("inbox", {"x-single-active-consumer": True})):
        queue = await channel.declare_queue(name, durable=True, arguments=arguments)
        await queue.bind(copies)
    await queue.bind(foreign)  # the consumers' alone: the checker's client cannot read all of it


async def _bind(channel):
    await (await channel.get_exchange("copies")).bind("torture", "torture")


async def _unbind(channel):
    await (await channel.get_exchange("copies")).unbind("torture", "torture")


async def _drain(channel):
    """Take all there is, in the queue's order: as many as it counts, or until it counts none."""
    queue = await channel.declare_queue("torture", passive=True)
    found, left = [], queue.declaration_result.message_count
    arrived = asyncio.Queue()
    await queue.consume(arrived.put, no_ack=True)
    while len(found) < left:
        try:
            async with asyncio.timeout(QUIET_SECONDS):
                message = await arrived.get()
        except TimeoutError:
            again = await channel.declare_queue("torture", passive=True)
            waiting = again.declaration_result.message_count
            if not waiting:  # it had counted too many; the checker says whether any is missing
                break
            raise TimeoutError(f"{waiting} messages do not come, after {len(found)}") from None
        found.append(_content(message.message_id, message.body, message.headers))
    return found
