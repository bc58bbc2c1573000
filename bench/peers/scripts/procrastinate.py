"""procrastinate: a job for each event; a lock for each key keeps its order; done jobs go."""

import asyncio

import procrastinate

from bench.peers.scripts.stage import play


def make(url):
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    return app, {"listen_notify": False, "install_signal_handlers": False}


async def fill(url, events):
    app, _ = make(url)

    @app.task(name="publish")
    async def publish(payload):
        pass

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for key, payload in events:
            await publish.configure(lock=key).defer_async(payload=payload)


async def drain(url, seen, concurrency):
    app, options = make(url)

    @app.task(name="publish")
    async def publish(payload):
        seen(payload)

    async with app.open_async():
        working = asyncio.create_task(
            app.run_worker_async(concurrency=concurrency, delete_jobs="always", **options)
        )
        await seen.wait()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


if __name__ == "__main__":
    play(fill, drain, lambda payload: payload)
