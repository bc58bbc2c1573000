"""Real destinations for bare loops and relays: a topic of Kafka, a queue of RabbitMQ."""

import asyncio
import uuid

PARTITIONS = 6
QUEUE = "bench"  # the topic of the events that the grounds prepare


class KafkaTopic:
    """A topic of its own, and what sends to it."""

    def __init__(self, servers, name=None):
        from confluent_kafka.admin import AdminClient, NewTopic

        self.servers = servers
        self.name = name or f"bench-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        admin.create_topics([NewTopic(self.name, PARTITIONS, 1)])[self.name].result(30)

    def broker(self):
        """A relay's destination."""
        from postroom.brokers.kafka import KafkaBroker

        return KafkaBroker(f"kafka://{self.servers}", topic=self.name)

    def clear(self):
        """Nothing: what lies in a topic slows nobody."""

    def tuned(self):
        """The producer's settings that a relay uses."""
        from postroom.brokers.kafka.settings import KafkaSettings

        settings = KafkaSettings(servers=self.servers)
        return {**settings.producer(), **settings.batching(500_000, one_by_one=False)}

    def plain(self):
        """The settings that one writes down: safe, and otherwise the defaults."""
        return {"bootstrap.servers": self.servers, "enable.idempotence": True}

    def sender(self, config, *, headers=True):
        """Return a function that produces all messages of a batch and waits for their delivery."""
        from confluent_kafka import Producer

        producer = Producer({**config, "log_level": 0})  # a relay makes its own, too
        landed = 0

        def report(error, _):
            nonlocal landed
            if error is not None:
                raise RuntimeError(error)
            landed += 1

        def send(messages):
            before = landed
            for key, payload, names in messages:
                producer.produce(
                    self.name, payload, key, on_delivery=report, headers=names if headers else None
                )
            producer.flush()
            if landed - before != len(messages):
                raise RuntimeError(f"delivered {landed - before} of {len(messages)}")

        return send


class RabbitQueue:
    """A durable quorum queue that is empty at the beginning of each round."""

    def __init__(self, url):
        self.url = url
        asyncio.run(self._with_channel(self._declare))

    def broker(self):
        from postroom.brokers.rabbitmq import RabbitBroker

        return RabbitBroker(self.url)

    def clear(self):
        asyncio.run(self._with_channel(lambda channel: channel.queue_purge(QUEUE)))

    async def _declare(self, channel):
        await channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})

    async def _with_channel(self, work):
        import aiormq

        connection = await aiormq.connect(self.url)
        try:
            await work(await connection.channel())
        finally:
            await connection.close()
