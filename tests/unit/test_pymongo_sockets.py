"""The harness closes sockets that pymongo forgets, so that they fail no bystander."""

import asyncio
import gc
import socket

from pymongo import AsyncMongoClient


async def test_a_connect_that_is_cancelled_leaves_no_socket():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        address = silent.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:  # the queue is full: further connects do not return
            each.setblocking(False)
            each.connect_ex(address)
        client = AsyncMongoClient(*address, serverSelectionTimeoutMS=60_000)
        asking = asyncio.create_task(client.admin.command("ping"))
        await asyncio.sleep(0.1)
        asking.cancel()
        await client.close()
        await asyncio.gather(asking, return_exceptions=True)
        for each in waiting:
            each.close()
    gc.collect()  # a forgotten socket is a ResourceWarning here
