"""The listener of PostgreSQL under failures that never end, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import logging
from types import SimpleNamespace

import psycopg
import pytest

from postroom.notifier import _connections
from postroom.stores.postgres import listener as listener_module
from postroom.stores.postgres.listener import Listener
from tests.sim.loop import virtual_time

HOUR = 3600.0


class Connection:
    """Answers for some seconds, then fails."""

    def __init__(self, good_for, error):
        self._good_for, self._error, self._until = good_for, error, None
        self.closed = False

    async def execute(self, statement):
        loop = asyncio.get_running_loop()
        if self._until is None:
            self._until = loop.time() + self._good_for
        if loop.time() >= self._until:
            raise self._error

    async def notifies(self, *, timeout):  # noqa: ASYNC109 - psycopg's name
        for nothing in ():
            yield nothing
        await asyncio.sleep(min(timeout, self._until - asyncio.get_running_loop().time()))

    async def close(self):
        self.closed = True
        raise self._error


class Connector:
    """Opens connections; each attempt is noted with its time."""

    settings = SimpleNamespace(channel="postroom")

    def __init__(self, answer):
        self._answer = answer
        self.attempts = []

    async def connect(self):
        self.attempts.append(asyncio.get_running_loop().time())
        return self._answer()


def failing(error):
    def answer():
        raise error

    return answer


def lines(caplog):
    return [
        (r.levelname, r.getMessage()) for r in caplog.records if r.name == listener_module.__name__
    ]


@pytest.mark.promise("F2")
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(failing(psycopg.OperationalError("gone")), id="cannot connect"),
        pytest.param(failing(ValueError("gone")), id="an error that is not the driver's"),
        pytest.param(failing(asyncio.CancelledError("gone")), id="a cancelled future"),
        pytest.param(lambda: Connection(0.0, RuntimeError("gone")), id="LISTEN fails"),
        pytest.param(lambda: Connection(0.1, RuntimeError("gone")), id="lost after each LISTEN"),
    ],
)
def test_a_listener_that_fails_for_an_hour_makes_few_attempts_and_one_log_line(  # E-susp.7
    answer, caplog
):
    async def story(loop):
        connector = Connector(answer)
        listener = Listener(connector)
        with caplog.at_level(logging.INFO, listener_module.__name__):
            while loop.time() < HOUR:
                await listener.wait(60.0)
        gaps = [b - a for a, b in itertools.pairwise(connector.attempts)]
        assert 300 < len(connector.attempts) < 400
        assert gaps[:5] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2], abs=0.11)
        assert max(gaps) < 10.2
        await listener.close()

    with virtual_time() as loop:
        loop.run_until_complete(story(loop))
    ((level, line),) = lines(caplog)
    assert (level, line[:72]) == (
        "WARNING",
        "LISTEN on postroom failed, postroom polls for commits of other processes",
    )
    assert line.endswith(": gone")


def test_a_listener_that_hears_again_says_so_and_begins_with_short_pauses(caplog):  # E-susp.7
    answers = itertools.chain(
        [failing(ValueError("one"))] * 8,
        [lambda: Connection(100.0, ValueError("two"))],
        itertools.repeat(failing(ValueError("three"))),
    )

    async def story(loop):
        connector = Connector(lambda: next(answers)())
        listener = Listener(connector)
        with caplog.at_level(logging.INFO, listener_module.__name__):
            while len(connector.attempts) < 12:
                await listener.wait(1.0)
                works.append(_connections[listener])
        gaps = [b - a for a, b in itertools.pairwise(connector.attempts)]
        assert gaps[7] == pytest.approx(10.0)
        assert gaps[9:11] == pytest.approx([0.4, 0.8])
        await listener.close()
        assert listener not in _connections

    works = []
    with virtual_time() as loop:
        loop.run_until_complete(story(loop))
    assert [part for part, _ in itertools.groupby(works)] == [
        ("listener", False), ("listener", True), ("listener", False),
    ]  # fmt: skip
    told = [(level, line.rpartition(": ")[2]) for level, line in lines(caplog)]
    assert told == [("WARNING", "one"), ("INFO", "LISTEN on postroom works again"),
                    ("WARNING", "two")]  # fmt: skip


def test_a_first_wait_ends_although_nobody_answers():  # E-susp.7
    async def story(loop):
        class Silent(Connector):
            async def connect(self):
                await asyncio.Event().wait()

        listener = Listener(Silent(None))
        assert await listener.wait(2.0) is False
        assert loop.time() == 12.0
        await listener.close()

    with virtual_time() as loop:
        loop.run_until_complete(story(loop))
