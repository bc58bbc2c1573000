"""How fast messages of Kafka and RabbitMQ take effect in PostgreSQL, each once.

    python -m bench.consume                     starts servers of its own
    python -m bench.consume --broker kafka --messages 5000

Every message has one INSERT of effect. Beside the consumer (accept, effect, commit, ack: each
message in a transaction of its own, or up to `--batch` of them in one) stand two loops without an
inbox, with the bare drivers: one message after the other, and as many side by side as the consumer
has handlers. Their effects double on a redelivery; the consumer's do not. Rounds alternate; the
table shows medians, and their ratios to the two loops.
"""

import argparse
import asyncio
import statistics
import time
from contextlib import AsyncExitStack, ExitStack
from uuid import uuid4

import psycopg
from aiormq.abc import Basic
from confluent_kafka import Consumer as KafkaClient
from confluent_kafka import Producer
from psycopg_pool import AsyncConnectionPool

from postroom import Consumer, Handlers, migrate
from postroom.stores.postgres import PostgresStore
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres
from tests.servers.rabbitmq import RabbitMQ

KEYS = 200
EFFECT = "INSERT INTO effects (message) VALUES (%s)"
BODY = b'{"total": 10, "note": "' + b"x" * 150 + b'"}'


class Watch:
    """Starts at a tenth of the effects: joining a group and opening pools is not measured."""

    def __init__(self, messages):
        self.warm, self.counted = messages // 10, messages - messages // 10
        self.started = 0.0

    def effect(self):
        self.warm -= 1
        if not self.warm:
            self.started = time.perf_counter()

    def rate(self):
        return self.counted / (time.perf_counter() - self.started)


class KafkaGround:
    """A topic for each round, of six partitions."""

    def __init__(self, url):
        self.url = url
        self.servers = url.removeprefix("kafka://")

    async def fill(self, messages, body):
        from tests.scenario.kafka_place import make_topic

        self.topic = make_topic(self.url, partitions=6)
        producer = Producer({"bootstrap.servers": self.servers})
        for n in range(messages):
            headers = [("postroom-id", str(uuid4())), ("postroom-type", "order.created")]
            producer.produce(self.topic, body, f"order-{n % KEYS}", headers=headers)
            producer.poll(0)
        producer.flush()

    def source(self):
        return f"{self.url}?topic={self.topic}&group={uuid4()}"

    async def bare(self, handle, messages, workers):
        """Read batches, hand them out by key, commit offsets when a batch is through."""
        client = KafkaClient(
            {
                "bootstrap.servers": self.servers, "group.id": str(uuid4()),
                "enable.auto.commit": False, "auto.offset.reset": "earliest",
            }
        )  # fmt: skip
        client.subscribe([self.topic])
        done = 0
        try:
            while done < messages:
                batch = await asyncio.to_thread(client.consume, 500, 0.1)
                by_key = {}
                for message in batch:
                    by_key.setdefault(message.key(), []).append(dict(message.headers()))
                await in_turn(by_key.values(), lambda m: handle(m["postroom-id"].decode()), workers)
                if batch:
                    client.commit(asynchronous=True)
                done += len(batch)
        finally:
            client.close()


class RabbitGround:
    """A quorum queue for each round."""

    def __init__(self, url):
        self.url = url

    async def _channel(self, stack):
        import aiormq

        connection = await aiormq.connect(self.url)
        stack.push_async_callback(connection.close)
        return await connection.channel(publisher_confirms=False)

    async def fill(self, messages, body):
        self.queue = f"bench-{uuid4().hex[:8]}"
        async with AsyncExitStack() as stack:
            channel = await self._channel(stack)
            arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
            await channel.queue_declare(self.queue, durable=True, arguments=arguments)
            for n in range(messages):
                properties = Basic.Properties(
                    delivery_mode=2, message_id=str(uuid4()), message_type="order.created",
                    headers={"postroom-key": f"order-{n % KEYS}"},
                )  # fmt: skip
                await channel.basic_publish(body, routing_key=self.queue, properties=properties)
            while (await channel.queue_declare(self.queue, passive=True)).message_count < messages:
                await asyncio.sleep(0.05)

    def source(self):
        return f"{self.url}?queue={self.queue}"

    async def bare(self, handle, messages, workers):
        """Keep each key in a queue of its own; ack after the commit."""
        done, queues, busy = 0, {}, asyncio.Semaphore(workers)
        finished = asyncio.Event()
        async with AsyncExitStack() as stack:
            channel = await self._channel(stack)
            await channel.basic_qos(prefetch_count=200)

            async def work(key):
                nonlocal done
                while queues[key]:
                    message = queues[key].pop(0)
                    async with busy:
                        await handle(message.header.properties.message_id)
                    await channel.basic_ack(message.delivery_tag, wait=False)
                    done += 1
                del queues[key]
                if done >= messages:
                    finished.set()

            async def on_message(message):
                key = message.header.properties.headers["postroom-key"]
                if key in queues:
                    queues[key].append(message)
                else:
                    queues[key] = [message]
                    await work(key)

            await channel.basic_consume(self.queue, on_message)
            await finished.wait()


GROUNDS = {"kafka": KafkaGround, "rabbitmq": RabbitGround}


def prepare(url):
    """Make the tables of the inbox, and one for the effects."""
    asyncio.run(migrate(url))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE effects (n bigserial, message text)")


async def in_turn(runs, handle, workers):
    waiting = iter(runs)

    async def work():
        for run in waiting:
            for message in run:
                await handle(message)

    await asyncio.gather(*(work() for _ in range(workers)))


async def bare(ground, url, messages, workers):
    async with AsyncConnectionPool(
        url, min_size=workers, max_size=workers, kwargs={"autocommit": True}, open=False
    ) as pool:
        watch = Watch(messages)

        async def handle(message):
            watch.effect()
            async with pool.connection() as connection, connection.transaction():
                await connection.execute(EFFECT, (message,))

        await ground.bare(handle, messages, workers)
        return watch.rate()


async def ours(ground, url, messages, workers, **options):
    handlers = Handlers(name="bench", concurrency=workers)
    left, watch = messages, Watch(messages)
    finished = asyncio.Event()

    @handlers.on("order.created")
    async def effect(event, tx):
        nonlocal left
        watch.effect()
        await tx.execute(EFFECT, (event.id,))
        left -= 1
        if not left:
            finished.set()

    store = PostgresStore(f"{url}?pool_size={workers}")
    consumer = Consumer(ground.source(), store, handlers, **options)
    await consumer.start()
    await finished.wait()
    while consumer.settings.mode == "direct" and consumer.counts.done < messages:
        await asyncio.sleep(0.001)  # the last ones are to be committed and acknowledged too
    rate = watch.rate()
    await consumer.stop()
    return rate


async def measure(ground, url, args):
    job = (ground, url, args.messages)
    kinds = {
        "bare loop, one by one": lambda: bare(*job, 1),
        f"bare loop, {args.workers} side by side": lambda: bare(*job, args.workers),
        "consumer, direct": lambda: ours(*job, args.workers),
        f"consumer, batch={args.batch}": lambda: ours(*job, args.workers, batch=args.batch),
        "consumer, durable": lambda: ours(*job, args.workers, mode="durable"),
    }
    rates = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind, run in kinds.items():
            await ground.fill(args.messages, BODY)
            rates[kind].append(await run())
    return {kind: statistics.median(found) for kind, found in rates.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--broker", choices=["kafka", "rabbitmq"])
    parser.add_argument("--messages", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--batch", type=int, default=50)
    args = parser.parse_args()
    servers = {"kafka": Kafka, "rabbitmq": RabbitMQ}
    with ExitStack() as stack:
        url = stack.enter_context(Postgres()).url
        prepare(url)
        for name in [args.broker] if args.broker else GROUNDS:
            made = GROUNDS[name](stack.enter_context(servers[name]()).url)
            rates = asyncio.run(measure(made, url, args))
            one, many = list(rates.values())[:2]
            print(f"{name} → PostgreSQL, {args.messages} messages, median of {args.rounds}")
            for kind, rate in rates.items():
                print(f"  {kind:28} {rate:7,.0f}/s   {rate / one:5.2f} × {rate / many:5.2f} ×")


if __name__ == "__main__":
    main()
