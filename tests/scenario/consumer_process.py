"""A consumer in a process of its own that kills itself at a chosen step, as often as it is told.

The steps: receive, begin, accept, effect, commit, ack. `--die accept:2` is a SIGKILL right after
the second accept. With `--batch` one transaction runs at a time, and the steps of one that several
messages share have names of their own, from the second message on: next-accept, next-effect, count,
next-commit, next-ack. Effects, and the events that they cause, have ids of chance: a double shows.
"""

import argparse
import asyncio
import os
import signal
from contextlib import asynccontextmanager
from uuid import uuid4

from postroom import Event, Handlers
from postroom.engine.consumer import Consumer
from postroom.registry import load_source, load_store
from postroom.retry import Constant, RetryPolicy
from postroom.transactions.statements import AsyncStatements


class Fate:
    """Counts the steps, and ends the process at its hour."""

    def __init__(self, die, *, shares):
        self.step, _, count = (die or ":0").partition(":")
        self.left = int(count)
        self.shares = shares
        self.accepted = 0  # in this transaction; of use where one runs at a time

    def reached(self, step):
        if self.shares and self.accepted > 1 and step in ("accept", "effect", "commit", "ack"):
            step = f"next-{step}"
        if step == self.step:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)


def plant(fate, source, store):
    """Have every step reported, right after it was taken."""
    receive, begin = source.receive, store.transaction
    accept, look = AsyncStatements.accept, AsyncStatements.standing

    async def receiving():
        deliveries = await receive()
        if deliveries:
            fate.reached("receive")
        return [Watched(fate, delivery) for delivery in deliveries]

    @asynccontextmanager
    async def transaction():
        async with begin() as tx:
            fate.accepted = 0
            fate.reached("begin")
            yield tx
        fate.reached("commit")

    async def accepting(self, mark):
        new = await accept(self, mark)
        fate.accepted += 1
        fate.reached("accept")
        return new

    async def looking(self, proofs):
        found = await look(self, proofs)
        fate.reached("look")
        return found

    source.receive, store.transaction = receiving, transaction
    AsyncStatements.accept, AsyncStatements.standing = accepting, looking


class Watched:
    """A delivery whose acknowledgement is a step."""

    def __init__(self, fate, inner):
        self._fate, self._inner = fate, inner
        self.message = inner.message

    @property
    def is_lost(self):
        return self._inner.is_lost

    def ack(self):
        self._inner.ack()
        self._fate.reached("ack")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("source")
    parser.add_argument("--mode", default="direct")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--die")
    parser.add_argument("--slow", type=float, default=0.0)
    args = parser.parse_args()
    fate = Fate(args.die, shares=args.batch > 1)
    source, store = load_source(args.source), load_store(args.store)
    handlers = Handlers(name="payments", concurrency=10 if args.batch == 1 else 1)

    @handlers.on("order.created")
    async def charge(event, tx, context):
        await tx.execute(
            "INSERT INTO effects (message, process) VALUES (%s, %s)", (event.id, os.getpid())
        )
        await context.add(Event("payment.made", {"of": event.id}, id=str(uuid4())))
        fate.reached("effect")
        await asyncio.sleep(args.slow)

    plant(fate, source, store)
    retry = RetryPolicy(backoff=Constant(0.05))
    consumer = Consumer(
        source, store, handlers, mode=args.mode, batch=args.batch, retry=retry, lease_seconds=1.5,
        stop_seconds=10,
    )  # fmt: skip
    asyncio.run(run(consumer))


async def run(consumer):
    async def tell():
        while not consumer.is_running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        print("running", flush=True)

    telling = asyncio.create_task(tell())
    await consumer.run()
    await telling
    print(f"stopped repeats={consumer.counts.repeats}", flush=True)


if __name__ == "__main__":
    main()
