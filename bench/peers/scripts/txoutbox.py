"""txoutbox: order for each key by its strict mode, done rows deleted."""

import asyncpg
from txoutbox import Relay, RelayConfig
from txoutbox.adapters.postgres import PostgresStorage

from bench.peers.scripts.stage import TOPIC, play, producer


async def fill(url, events):
    async with asyncpg.create_pool(url) as pool:
        outbox = PostgresStorage(pool)
        await outbox.create_schema()
        async with pool.acquire() as connection, connection.transaction():
            for key, payload in events:
                await outbox.insert(connection, TOPIC, payload, key=key)


async def drain(url, seen, batch, servers=None):
    async with asyncpg.create_pool(url) as pool, producer(servers) as kafka:
        outbox = PostgresStorage(pool, delete_on_ack=True)

        async def publish(message):
            if kafka:
                await kafka.send_and_wait(message.topic, message.payload, key=message.key.encode())
            seen(message)

        config = RelayConfig(batch_size=batch, concurrency=batch)
        async with Relay(outbox, publish, config=config):
            await seen.wait()


if __name__ == "__main__":
    play(fill, drain, lambda message: message.json())
