"""faststream-outbox: no order of keys; one worker, or several."""

from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from bench.peers.scripts.stage import TOPIC, play

STEP = 500


def make(url):
    metadata = MetaData()
    table = make_outbox_table(metadata, table_name="outbox")
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    return metadata, engine, OutboxBroker(engine, outbox_table=table, logger=None)


async def fill(url, events):
    metadata, engine, broker = make(url)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    async with async_sessionmaker(engine)() as session, session.begin():
        for at in range(0, len(events), STEP):
            step = [payload for _, payload in events[at : at + STEP]]
            await broker.publish_batch(*step, queue="bench", session=session)
    await engine.dispose()


async def drain(url, seen, batch, workers, servers=None):
    _, engine, broker = make(url)
    subscriber = broker.subscriber(
        "bench", max_workers=workers, fetch_batch_size=batch, terminal_flush_batch_size=batch,
        min_fetch_interval=0.01,
    )  # fmt: skip
    if servers is None:

        @subscriber
        async def publish(body: dict):
            seen(body)

        await work(broker, seen)
    else:
        from faststream.kafka import KafkaBroker

        kafka = KafkaBroker(servers, enable_idempotence=True, acks="all", logger=None)

        @subscriber
        async def relay(body: dict):
            await to_kafka.publish(body, key=body["key"].encode())
            seen(body)

        to_kafka = kafka.publisher(TOPIC)
        async with kafka:
            await work(broker, seen)
    await engine.dispose()


async def work(broker, seen):
    await broker.start()
    await seen.wait()
    await broker.stop()


if __name__ == "__main__":
    play(fill, drain, lambda body: body)
