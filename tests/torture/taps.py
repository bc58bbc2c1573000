"""What arrived: read from the destination itself, in the order of arrival, by plain clients."""

from __future__ import annotations

import json
import uuid


class HandlersTap:
    """Effects of handlers, which are rows of the database under torture."""

    exactly_once = True
    broker = "handlers:tests.torture.effects:handlers"

    def arrivals(self, world):
        return [(i, k, n) for i, k, n in world.effects()]


class KafkaTap:
    exactly_once = False

    def __init__(self, url):
        self.servers = url.removeprefix("kafka://")
        self.broker = url

    def prepare(self):
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.servers})
        for future in admin.create_topics([NewTopic("torture", num_partitions=3)]).values():
            future.result(30)

    def arrivals(self, world):
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": str(uuid.uuid4()),
             "enable.auto.commit": False, "isolation.level": "read_committed"}
        )  # fmt: skip
        found = []
        for partition in range(3):
            _, end = consumer.get_watermark_offsets(
                TopicPartition("torture", partition), timeout=30
            )
            consumer.assign([TopicPartition("torture", partition, 0)])
            while True:
                position = consumer.position([TopicPartition("torture", partition)])[0].offset
                if position >= end:
                    break
                if end == 0:
                    break
                message = consumer.poll(10)
                if message is None:
                    break
                found.append(_read(dict(message.headers()), message.value()))
        consumer.close()
        return found


def _read(headers, body):
    data = json.loads(body)
    return headers["postroom-id"].decode(), data["k"], data["n"]


class RabbitTap:
    exactly_once = False

    def __init__(self, url):
        self.url = url
        self.broker = f"{url}?exchange=torture&declare=on&queue=torture&queue_type=classic"

    def prepare(self):
        pass

    def arrivals(self, world):
        import asyncio

        return asyncio.run(self._drain())

    async def _drain(self):
        import aio_pika

        connection = await aio_pika.connect(self.url)
        async with connection:
            channel = await connection.channel()
            queue = await channel.get_queue("torture")
            found = []
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                data = json.loads(message.body)
                found.append((message.message_id, data["k"], data["n"]))
            return found
