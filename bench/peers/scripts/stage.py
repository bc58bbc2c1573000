"""What all scripts share: `fill` an outbox once, or `drain` a part of it when told.

    python -m bench.peers.scripts.NAME fill URL EVENTS KEYS
    python -m bench.peers.scripts.NAME drain URL EVENTS SETTINGS [SERVERS]   settings as JSON

Events go nowhere, or to the topic `bench` of these Kafka servers. A drain says that it is ready,
waits for a line, works until so many events were published, and tells the seconds. The clock stops
at the last publish: what comes after it, the peer's last bookkeeping, is not counted against it.
"""

import asyncio
import json
import os
import resource
import sys
import time
from contextlib import asynccontextmanager

NOTE = "x" * 120
TOPIC = "bench"


def events(count, keys):
    """Yield key and payload of so many events; the payload carries key and number."""
    for n in range(count):
        key = f"k{n % keys}"
        yield (
            key,
            {"key": key, "n": n, "total": 129.9, "items": ["a", "b", "c"], "note": NOTE},
        )


class Seen:
    """The publisher that does nothing: it keeps what it was given, for a look at the order."""

    def __init__(self, count):
        self.items = []
        self.at = 0.0
        self._count = count
        self._enough = asyncio.Event()

    def __call__(self, item):
        self.items.append(item)
        if len(self.items) == self._count:
            self.at = time.perf_counter()
            self._enough.set()

    @property
    def enough(self):
        return self._enough.is_set()

    async def wait(self):
        await self._enough.wait()


@asynccontextmanager
async def producer(servers):
    """A producer of aiokafka, safe and else with its defaults; None if there are no servers."""
    if servers is None:
        yield None
        return
    from aiokafka import AIOKafkaProducer

    made = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True, acks="all")
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def disorder(payloads):
    """Count the events that came after a later one of their key."""
    last, late = {}, 0
    for payload in payloads:
        key, n = payload["key"], payload["n"]
        late += n < last.get(key, -1)
        last[key] = max(n, last.get(key, -1))
    return late


def play(fill, drain, payload, run=asyncio.run):
    """Be the program: `payload` gives the payload of what the publisher was given."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a package prints must not be taken for an answer
    command, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if command == "fill":
        run(fill(url, list(events(count, int(sys.argv[4])))))
        print(json.dumps({"filled": count}), file=answer, flush=True)
        return
    settings = json.loads(sys.argv[4])
    if len(sys.argv) > 5:
        settings["servers"] = sys.argv[5]
    print("ready", file=answer, flush=True)
    sys.stdin.readline()

    async def timed():
        seen = Seen(count)
        began = time.perf_counter()
        await drain(url, seen, **settings)
        return seen, seen.at - began

    seen, seconds = run(timed())
    late = disorder(payload(item) for item in seen.items)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"seconds": seconds, "late": late, "memory_mb": memory}
    print(json.dumps(found), file=answer, flush=True)
