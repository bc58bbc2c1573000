"""What arrived: read from the destination itself, in the order of arrival, by plain clients."""

from __future__ import annotations

import asyncio
import json
import uuid

TOPIC_LIMIT = 400_000  # bytes; poison is larger


class HandlersTap:
    """Effects of handlers, which are rows of the database under torture."""

    kind = "handlers"
    exactly_once = True
    poison_size = 0  # the handler refuses it, whatever its size
    url = "handlers:tests.torture.effects:handlers"

    def prepare(self):
        pass

    def arrivals(self, world):
        sizes = {event_id: row[2] for event_id, row in world.committed().items()}
        return [(i, k, n, sizes.get(i)) for i, k, n in world.effects()]


class KafkaTap:
    kind = "kafka"
    exactly_once = False
    poison_size = TOPIC_LIMIT * 3 // 2

    def __init__(self, url, replicas=1):
        self.servers = url.removeprefix("kafka://")
        self.replicas = replicas
        self.url = url

    def prepare(self):
        from confluent_kafka.admin import AdminClient, NewTopic

        topic = NewTopic(
            "torture", num_partitions=3, replication_factor=self.replicas,
            config={"max.message.bytes": str(TOPIC_LIMIT)},
        )  # fmt: skip
        admin = AdminClient({"bootstrap.servers": self.servers})
        for future in admin.create_topics([topic]).values():
            future.result(30)

    def arrivals(self, world):
        del world
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
                message = consumer.poll(30)
                if message is None:
                    raise TimeoutError(f"partition {partition} does not end")
                if message.error():  # the end of the partition
                    break
                found.append(_arrival(dict(message.headers()), message.value()))
        consumer.close()
        return found


def _arrival(headers, body):
    return headers["postroom-id"].decode(), *_content(body)


def _content(body):
    data = json.loads(body)
    return data["k"], data["n"], len(data["padding"])


class RabbitTap:
    kind = "rabbitmq"
    exactly_once = False
    poison_size = None  # it takes everything

    def __init__(self, url):
        self.direct = url
        # A quorum queue on one node of RabbitMQ 3.10 may find no leader after a kill.
        self.options = "exchange=torture&declare=on&queue=torture&queue_type=classic"
        self.url = f"{url}?{self.options}"

    def prepare(self):
        pass

    def arrivals(self, world):
        del world
        return asyncio.run(self._drain())

    async def _drain(self):
        import aio_pika

        connection = await aio_pika.connect(self.direct)
        async with connection:
            channel = await connection.channel()
            queue = await channel.get_queue("torture")
            found = []
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                found.append((message.message_id, *_content(message.body)))
            return found
