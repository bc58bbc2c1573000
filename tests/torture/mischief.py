"""Handlers that misbehave: what each does, and how its event must end on each database.

What they do to their transactions is what the contract of misbehaviour tries one by one. Two more
are here: one that hangs past its time limit and writes afterwards, and one with a thread and a
connection of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import closing

from postroom.broker import Verdict
from postroom.testing import misbehaviour
from tests.torture.worlds import open_world

TIME_LIMIT_SECONDS = 8.0
HANG_SECONDS = TIME_LIMIT_SECONDS + 12  # longer than a process is ever paused
STORE = os.environ.get("POSTROOM_TORTURE_STORE", "")
BEHAVIOURS = {
    each.__name__: each
    for each in (
        misbehaviour.swallow, misbehaviour.panic, misbehaviour.commit,
        misbehaviour.commit_and_raise, misbehaviour.roll_back, misbehaviour.roll_back_and_go_on,
        misbehaviour.roll_back_and_raise, misbehaviour.close,
    )
}  # fmt: skip


def end_of(fate, scheme):
    """Say whether an event with this fate ends `done` or `dead`."""
    if fate == "own_thread":
        return "done"
    if fate in ("close", "hang"):
        return "dead"
    if fate == "swallow":  # where a statement that fails ends the transaction, nothing can be kept
        return "dead" if scheme in ("postgresql", "mongodb") else "done"
    ends = misbehaviour.TABLE[BEHAVIOURS[fate]]
    end = ends["refused" if scheme == "mongodb" else "transaction"]
    return "done" if end.verdict is Verdict.CONFIRMED else "dead"


class Bench:
    """What the behaviours do their mischief with; every order is the effect of the event."""

    def __init__(self, scheme, order):
        self._scheme, self._order = scheme, order

    async def order(self, tx, name):
        del name
        await self._order(tx)

    async def fail(self, tx):
        if self._scheme == "mongodb":
            found = tx.client.get_default_database()["torture_key"]
            await found.insert_one({"_id": "k0"}, session=tx)
        else:
            await self._run(tx, "INSERT INTO nowhere VALUES (1)")

    async def commit_inside(self, tx):
        if self._scheme == "mongodb":
            await tx.commit_transaction()
        else:
            await self._run(tx, "COMMIT")

    async def roll_back_inside(self, tx):
        if self._scheme == "mongodb":
            await tx.abort_transaction()
        else:
            await self._run(tx, "ROLLBACK")

    async def close_inside(self, tx):
        found = tx.end_session() if self._scheme == "mongodb" else tx.close()
        if asyncio.iscoroutine(found):
            await found

    async def _run(self, tx, sql):
        if hasattr(tx, "execute"):
            await tx.execute(sql)
        else:
            async with tx.cursor() as cursor:
                await cursor.execute(sql)


def register(handlers, scheme, effect, effect_in_a_thread):
    """Give every fate its handler."""

    def misbehaving(behaviour):
        async def misbehave(event, tx):
            await behaviour(Bench(scheme, lambda its: effect(event, its)), tx)

        return misbehave

    for fate, behaviour in BEHAVIOURS.items():
        handlers.on(fate, name=fate)(misbehaving(behaviour))

    @handlers.on("hang")
    def hang(event, tx):
        """It is given up, and not started again meanwhile; what it writes then is too late."""
        time.sleep(HANG_SECONDS)
        effect_in_a_thread(event, tx)

    @handlers.on("own_thread")
    async def use_an_own_thread(event, tx):
        """It looks at the database by itself, and may fail at that; its effect counts."""
        thread = threading.Thread(target=_look, daemon=True)
        thread.start()
        await effect(event, tx)
        await asyncio.to_thread(thread.join)


def _look():
    try:
        with closing(open_world(STORE)) as world:
            world.written()
    except Exception as error:
        print(f"own thread: {type(error).__name__}")
