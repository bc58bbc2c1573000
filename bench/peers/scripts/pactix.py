"""pactix: order within a type and key; a transaction for each event, done rows are kept."""

from pactix import (
    MessageEnvelope,
    MessageMetadata,
    OutboxRunner,
    OutboxStore,
    PactixConfig,
    PublisherRegistry,
    PublishOutcome,
    outbox_publisher,
)
from pactix.db.tables import metadata
from sqlalchemy.ext.asyncio import create_async_engine

from bench.peers.scripts.stage import TOPIC, play, producer


def make(url):
    return create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))


async def fill(url, events):
    engine, store = make(url), OutboxStore(PactixConfig())
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    async with engine.begin() as connection:
        for key, payload in events:
            about = (
                MessageMetadata.for_event_type("bench").with_ordering_key(key).with_message_key(key)
            )
            await store.append(connection, MessageEnvelope(about, payload))
    await engine.dispose()


async def to_kafka(kafka):
    from pactix.transport.kafka.publisher import (
        AIOKafkaProducerClient,
        KafkaOutboxPublisher,
        KafkaTopicRouter,
    )

    router = KafkaTopicRouter()
    await router.register("bench", TOPIC)
    return KafkaOutboxPublisher(AIOKafkaProducerClient(kafka), router)


async def drain(url, seen, batch, servers=None):
    engine, publishers = make(url), PublisherRegistry()
    runner = OutboxRunner(OutboxStore(PactixConfig(outbox_batch_size=batch)), publishers)
    async with producer(servers) as kafka:
        inner = await to_kafka(kafka) if kafka else None

        async def publish(record):
            outcome = await inner.publish(record) if inner else PublishOutcome.published()
            seen(record)
            return outcome

        await publishers.register_all(outbox_publisher(publish))
        while not seen.enough:
            await runner.run_once(engine)
    await engine.dispose()


if __name__ == "__main__":
    play(fill, drain, lambda record: record.payload)
