"""How commands end when something came in between: the exit code, and what is said."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress

import pytest

from postroom.admin.selection import Chosen, fetch
from postroom.cli import doctor, migrate, prune, replay
from postroom.cli.app import execute
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import opened
from postroom.cli.progress import Stop
from postroom.event import Event
from postroom.model.diagnostics import Finding
from postroom.model.url import Url
from postroom.outbox import Outbox
from postroom.record import State
from postroom.store import Schema
from postroom.stores.memory import MemoryStore

URL = Url.parse("sqlite:///app.db")


@pytest.mark.parametrize(
    ("copies", "where"),
    [(True, ", with the ids from e2 on"), (False, "")],
    ids=["copies", "originals"],
)
async def test_an_interrupted_replay_says_where_to_go_on(monkeypatch, capsys, copies, where):
    stop, sent = Stop(), []

    async def work(store, ids):
        sent.extend(ids)
        stop.asked = True
        return len(ids)

    monkeypatch.setattr(replay, "STEP", 2)
    chosen = [Chosen(f"e{n}", 100 + n, b"k", 1, keyed=True) for n in range(5)]
    order = replay.Order("replay", "to be sent", (), work, lambda _: [], copies=copies)
    assert await replay._work(None, chosen, order, stop) == ExitCode.INTERRUPTED
    assert sent == ["e0", "e1"]
    told = f"interrupted: 3 events are unchanged; run the command again to continue{where}\n"
    assert capsys.readouterr().err == told


class Endless(MemoryStore):
    """Has ever more to prune; somebody presses Ctrl-C during the second step."""

    steps = 0

    async def prune(self, older_than_seconds, limit):
        self.steps += 1
        if self.steps == 2:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.01)
        return limit


async def test_an_interrupted_prune_is_not_the_end_of_it(monkeypatch, capsys):
    store = Endless()
    monkeypatch.setattr(prune, "shared_store", lambda url: store)
    code = await prune._prune(URL, 0.0, "anna", dry_run=False, as_json=False)
    assert (code, store.steps) == (ExitCode.INTERRUPTED, 2)
    assert capsys.readouterr().out == "removed 2,000 of 0 done events\n"


async def test_a_prune_goes_on_until_there_is_no_more(monkeypatch, capsys):
    steps, store = iter([1_000, 1_000, 3]), MemoryStore()

    async def step(older_than_seconds, limit):
        return next(steps)

    monkeypatch.setattr(store, "prune", step)
    monkeypatch.setattr(prune, "shared_store", lambda url: store)
    assert await prune._prune(URL, 0.0, "anna", dry_run=False, as_json=True) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["removed"] == 2_003
    assert sum(entry.how_many for entry in await store.audit_log(10)) == 2_003


@pytest.mark.parametrize(("current", "code"), [(0, 1), (1, 1), (2, 0), (3, 1)])
def test_only_tables_of_this_very_version_are_up_to_date(monkeypatch, capsys, current, code):
    async def schema():
        return Schema(current, 2)

    store = MemoryStore()
    monkeypatch.setattr(store, "schema", schema)
    assert migrate._status(store, URL, as_json=False) == code


async def test_events_that_are_named_go_in_the_order_of_writing():
    store = MemoryStore()
    async with store.transaction() as tx:
        await Outbox().add_many(tx, [Event("t", id=name) for name in ("a", "b", "c")])
    found = await fetch(store, ["c", "a", "b", "a"], [State.PENDING])
    assert [record.id for record in found] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("levels", "code"), [(("info", "error", "warning"), 1), (("info", "warning"), 0)]
)
def test_one_error_among_other_findings_fails_the_doctor(monkeypatch, capsys, levels, code):
    async def examine(*_):
        return [Finding(level, f"this {level}", "why", "fix") for level in levels]

    monkeypatch.setattr(doctor, "_examine", examine)
    assert execute(["doctor", "--store", str(URL)]) == code
    shown = capsys.readouterr().out
    assert [level for level in ("error", "warning", "info") if f"this {level}" in shown] == [
        level for level in ("error", "warning", "info") if level in levels
    ]


@pytest.mark.parametrize("error", [None, ValueError("no")])
async def test_a_store_is_closed_however_the_command_ends(error):
    class Closing(MemoryStore):
        closed = 0

        async def close(self):
            self.closed += 1

    store = Closing()
    with suppress(ValueError):
        async with opened(store):
            if error is not None:
                raise error
    assert store.closed == 1
