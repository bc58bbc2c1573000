"""A store that several relays of one process use is opened once and closed by the last."""

from __future__ import annotations

import asyncio

import pytest

from postroom.engine.sharing import close_shared, open_shared


class Thing:
    """A store whose opening takes a while, and which does not mind a second one when it is open."""

    def __init__(self, error=None):
        self.is_open = False
        self.connections = self.closed = 0
        self.error = error

    async def open(self):
        if not self.is_open:
            self.connections += 1
            await asyncio.sleep(0)
            if self.error is not None:
                raise self.error
            self.is_open = True

    async def close(self):
        await asyncio.sleep(0)
        self.closed += 1
        self.is_open = False


# T-C2
async def test_relays_that_start_together_open_their_store_once():
    thing = Thing()
    await asyncio.gather(*(open_shared(thing) for _ in range(3)))
    assert thing.connections == 1
    await asyncio.gather(*(close_shared(thing) for _ in range(3)))
    assert (thing.closed, thing.is_open) == (1, False)


async def test_whoever_comes_while_the_last_one_closes_gets_an_open_store():
    thing = Thing()
    await open_shared(thing)
    await asyncio.gather(close_shared(thing), open_shared(thing))
    assert thing.is_open
    await close_shared(thing)
    assert not thing.is_open


async def test_one_that_cannot_be_opened_is_closed_by_its_users_too():
    thing = Thing(OSError("away"))
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            await open_shared(thing)
    await close_shared(thing)
    assert thing.closed == 0
    await close_shared(thing)
    assert thing.closed == 1
