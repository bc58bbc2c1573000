"""pgqueuer: no order of keys; on uvloop, as its own command line runs."""

import asyncio
import json

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from bench.peers.scripts.stage import play

STEP = 1_000


async def fill(url, events):
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for at in range(0, len(events), STEP):
        step = events[at : at + STEP]
        await queries.enqueue(
            ["publish"] * len(step), [json.dumps(payload).encode() for _, payload in step],
            [0] * len(step),
        )  # fmt: skip
    await connection.close()


async def drain(url, seen, batch):
    connection = await asyncpg.connect(url)
    queue = PgQueuer(AsyncpgDriver(connection))

    @queue.entrypoint("publish")
    async def publish(job):
        seen(job)

    running = asyncio.create_task(queue.run(batch_size=batch))
    await seen.wait()
    queue.shutdown.set()
    await running
    await connection.close()


if __name__ == "__main__":
    play(fill, drain, lambda job: json.loads(job.payload), uvloop.run)
