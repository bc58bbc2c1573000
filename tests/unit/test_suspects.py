"""The queue of suspects: one at a time, the oldest first."""

from __future__ import annotations

import asyncio

import pytest

from postroom.engine.relay.suspects import Suspects
from postroom.testing.broker_tools import make_record


class Trial:
    """Tries that wait to be let go."""

    def __init__(self):
        self.tried, self.running, self.most = [], 0, 0
        self.gate = asyncio.Event()
        self.began = asyncio.Event()

    async def __call__(self, record):
        self.running += 1
        self.most = max(self.most, self.running)
        self.tried.append(record.seq)
        self.began.set()
        await self.gate.wait()
        self.running -= 1


@pytest.fixture
def trial():
    return Trial()


@pytest.fixture
async def suspects(trial):
    made = Suspects(trial)
    made.start(pytest.fail)
    yield made
    await made.stop()


async def empty(suspects):
    async with asyncio.timeout(5):
        while not suspects.is_empty:
            await asyncio.sleep(0)


@pytest.mark.promise("P3")
async def test_suspects_are_tried_one_at_a_time_and_the_oldest_first(suspects, trial):
    suspects.add(make_record(5))
    await asyncio.wait_for(trial.began.wait(), 5)
    for seq in (9, 7, 8):
        suspects.add(make_record(seq))
    assert not suspects.is_empty
    trial.gate.set()
    await empty(suspects)
    assert trial.tried == [5, 7, 8, 9]
    assert trial.most == 1


@pytest.mark.promise("P3", "G7")
async def test_one_that_hangs_each_time_goes_behind_those_that_were_not_tried(suspects, trial):
    # E-susp.5
    trial.gate.set()

    async def try_alone(record):
        trial.tried.append(record.seq)
        if record.seq == 1 and trial.tried.count(1) < 4:
            suspects.add(record)  # no answer again

    suspects._try_alone = try_alone
    for seq in (3, 1, 2):
        suspects.add(make_record(seq))
    await empty(suspects)
    assert trial.tried == [1, 2, 3, 1, 1, 1]


async def test_one_that_comes_later_is_tried_too(suspects, trial):
    trial.gate.set()
    for seq in (1, 2):
        suspects.add(make_record(seq))
        await empty(suspects)
    assert trial.tried == [1, 2]


async def test_the_same_event_may_be_suspected_twice_with_other_facts(suspects, trial):
    """Its lane was lost and taken again meanwhile, and its key was blocked in between."""
    for facts in ({}, {"barrier": 7}, {"last_error": "boom"}, {"kseq": 3}):
        suspects.add(make_record(7, **facts))
    trial.gate.set()
    await empty(suspects)
    assert trial.tried == [7, 7, 7, 7]
