"""The proof of a floor, without a server: what its looks may do to each other."""

import asyncio

import pytest

from postroom.store import ReadRequest
from postroom.stores.postgres.floors import Floors

QUESTION = ReadRequest("main", (1,), 100, 100, 10**6, (), "me", {1: 1})


class SlowServer:
    """Answers a look at the writers when it is told to."""

    def __init__(self):
        self.asked = []

    async def rows(self, name, **_):
        if name == "floor_number":
            return [(100, 1, 10, 5, True)]
        answer = asyncio.get_running_loop().create_future()
        self.asked.append(answer)
        return [(writer,) for writer in await answer]


@pytest.mark.promise("R6")
async def test_there_is_one_look_at_a_time_however_long_it_takes():
    """Two at once: the first ended the proof, the second broke the relay down, or worse: judged
    the next proof by the writers of the last one."""
    floors, server = Floors(slow_seconds=0.0, slow_reads=1, pause=0.0), SlowServer()
    first = asyncio.create_task(floors.noticed(server, QUESTION, 1.0))
    await asyncio.sleep(0)
    assert len(server.asked) == 1
    await floors.noticed(server, QUESTION, 1.0)
    assert len(server.asked) == 1
    server.asked[0].set_result(["a writer"])
    await first
    again = asyncio.create_task(floors.noticed(server, QUESTION, 1.0))
    await asyncio.sleep(0)
    assert len(server.asked) == 2
    server.asked[1].set_result(["a writer"])
    await again
