"""Relays in processes of their own on one SQLite file: killed, told to stop, told to hurry."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter

import pytest

from postroom.event import Event
from tests.prepared import Prepared, lines_of
from tests.scenario.place import SqlitePlace, until

pytestmark = pytest.mark.slow

KEYS = [f"k{n}" for n in range(12)]


class Process:
    """A relay in a process; `said` is what it has told so far."""

    def __init__(self, process, output):
        self._process = process
        self.pid = process.pid
        self.said = []
        self._listening = asyncio.create_task(self._listen(output))

    async def _listen(self, output):
        async for line in lines_of(output):
            self.said.append(line)

    async def hears(self, word):
        await until(lambda: word in self.said)

    def signal(self, number):
        self._process.send_signal(number)

    async def ended(self, seconds=10.0):
        """Wait for its end; returns the exit code."""
        await until(lambda: self._process.poll() is not None, seconds)
        await self._listening
        return self._process.returncode

    async def close(self):
        self._process.kill()
        await self.ended()


@pytest.fixture
async def place(tmp_path):
    made = SqlitePlace(tmp_path / "app.db")
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def tap(tmp_path):
    return tmp_path / "tap.txt"


@pytest.fixture(scope="module")
def prepared():
    made = Prepared("tests.scenario.relay_process", "postroom.stores.sqlite", env=dict(os.environ))
    yield made
    made.end()


@pytest.fixture
async def spawn(place, tap, prepared):
    started = []

    async def spawn(*options):
        ours, theirs = os.pipe()
        process = prepared.start(
            "tests.scenario.relay_process", place.store.url, tap, *options,
            env=dict(os.environ), stdout=theirs, stderr=2,
        )  # fmt: skip
        os.close(theirs)
        started.append(Process(process, ours))
        return started[-1]

    yield spawn
    for process in started:
        await process.close()


def arrivals(tap):
    """(pid, key, number, id), in the order of arrival."""
    lines = tap.read_text().splitlines() if tap.exists() else []
    return [(int(p), k, int(n), i) for p, k, n, i in (line.split(" ") for line in lines)]


def first_seen(tap):
    """Key → the numbers of its events, in the order in which each was seen for the first time."""
    found, seen = {}, set()
    for _, key, number, event_id in arrivals(tap):
        if event_id not in seen:
            seen.add(event_id)
            found.setdefault(key, []).append(number)
    return found


@pytest.mark.req("S1.4", "S2.3", "S4.6", "S4.7", "S3.2")
@pytest.mark.promise("G1", "G2", "G4")
async def test_a_relay_is_killed_and_nothing_is_lost_or_out_of_order(place, spawn, tap):
    doomed, other = await spawn(), await spawn()
    await doomed.hears("taken")
    await other.hears("taken")
    rounds, ghosts = 40, []
    for n in range(rounds):
        await place.write(*(Event("made", n, key=key) for key in KEYS))
        if n % 4 == 0:
            ghost = Event("made", -1, key=KEYS[n % 12])
            await place.roll_back(ghost)
            ghosts.append(ghost.id)
        if n == rounds // 2:
            await until(lambda: {pid for pid, *_ in arrivals(tap)} >= {doomed.pid, other.pid})
            doomed.signal(signal.SIGKILL)
            assert await doomed.ended() == -signal.SIGKILL
            await spawn()
    await until(place.all_done, 30)
    assert first_seen(tap) == {key: list(range(rounds)) for key in KEYS}
    assert not {event_id for *_, event_id in arrivals(tap)} & set(ghosts)
    copies = Counter(event_id for *_, event_id in arrivals(tap))
    killed = {event_id for pid, *_, event_id in arrivals(tap) if pid == doomed.pid}
    assert {i for i, n in copies.items() if n > 1} <= killed  # repeats come from the kill alone


@pytest.mark.req("S4.3")
@pytest.mark.promise("G3", "L4")
async def test_sigterm_finishes_what_is_in_flight_settles_and_gives_the_lanes_back(
    place, spawn, tap, tmp_path
):
    gate = tmp_path / "gate"
    relay = await spawn("--gate", str(gate))
    await relay.hears("taken")
    await place.write(Event("made", 0, id="e0", key="k"), Event("made", 1, id="e1", key="k"))
    await relay.hears("waiting")
    relay.signal(signal.SIGTERM)
    await relay.hears("released")  # it has heard the signal: lanes without work are gone
    await place.write(Event("made", 2, id="e2", key="k"))
    assert set((await place.states()).values()) == {"pending"}
    gate.touch()
    assert await relay.ended() == 0
    assert await place.states() == {"e0": "done", "e1": "done", "e2": "pending"}
    assert await place.owners() == {}
    assert (await place.store.leases("main")).members == ()
    assert [number for _, _, number, _ in arrivals(tap)] == [0, 1]


@pytest.mark.req("S4.3")
async def test_a_second_signal_stops_at_once_and_the_next_relay_goes_on(
    place, spawn, tap, tmp_path
):
    gate = tmp_path / "gate"
    relay = await spawn("--gate", str(gate))
    await relay.hears("taken")
    await place.write(Event("made", 0, id="e0", key="k"), Event("made", 1, id="e1", key="k"))
    await relay.hears("waiting")
    relay.signal(signal.SIGTERM)
    await relay.hears("released")
    relay.signal(signal.SIGINT)
    assert await relay.ended(5) == 0  # it would wait for a minute otherwise
    assert set((await place.states()).values()) == {"pending"}
    gate.touch()
    await spawn("--gate", str(gate))
    await until(place.all_done)
    assert first_seen(tap) == {"k": [0, 1]}


async def test_sigterm_while_idle_ends_at_once(place, spawn):
    relay = await spawn()
    await relay.hears("taken")
    relay.signal(signal.SIGTERM)
    assert await relay.ended(5) == 0
    assert await place.owners() == {}
