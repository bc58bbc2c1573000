"""The history of an event: bounded, masked, and never an obstacle."""

from __future__ import annotations

import json

import pytest

from postroom.engine.handlers.handlers import Handlers
from postroom.engine.relay.relay import Relay
from postroom.errors import Reject, Retry
from postroom.event import Event
from postroom.model.history import (
    FIRST,
    LAST,
    MAX_BYTES,
    Entry,
    append,
    attempt,
    command,
    last_frames,
    read,
)
from postroom.outbox import Outbox
from postroom.retry import Constant, RetryPolicy
from postroom.stores.memory import MemoryStore


def grown(count, **fields):
    text = None
    for n in range(1, count + 1):
        text = append(text, Entry(n, "relay", "failed", n, **fields))
    return text


@pytest.mark.parametrize("count", [1, 3, 8, 9, 100])
def test_the_first_and_the_last_are_kept_and_the_rest_is_counted(count):
    found = read(grown(count))
    numbers = list(range(1, count + 1))
    kept = numbers if count <= FIRST + LAST else numbers[:FIRST] + numbers[-LAST:]
    assert [entry["attempt"] for entry in found.entries] == kept
    assert found.dropped == count - len(kept)


def test_an_attempt_is_recorded_once_however_often_it_is_written():
    entry = attempt("relay", "failed", 1, "boom")
    once = append(None, entry)
    assert append(append(once, entry), entry) == once
    assert len(read(append(once, entry._replace(at_us=entry.at_us + 1))).entries) == 2


@pytest.mark.parametrize("text", ["x", "\x1b", "é", "漢", "🙂", "\ud800", "\x00", '"', "\\"])
def test_it_is_short_and_ascii_whatever_the_errors_say(text):
    long = grown(20, error=text * 10_000, traceback=text * 10_000)
    assert len(long) <= MAX_BYTES
    assert long.isascii()
    found = read(long)
    assert len(found.entries) == FIRST + LAST
    assert found.entries[0]["traceback"]
    assert found.entries[-1]["traceback"]


@pytest.mark.parametrize(
    "damaged",
    ["", "{", "[]", "7", "null", "{}", '{"entries": 3}', "[" * 100_000, b"\xff", 7, {"a": 1}],
)
def test_a_damaged_history_is_replaced(damaged):
    assert read(damaged) == ((), 0)
    found = read(append(damaged, Entry(1, "relay", "failed", 1, "boom")))
    assert [entry["error"] for entry in found.entries] == ["boom"]


@pytest.mark.parametrize(
    "entry",
    [3, {}, {"at": "x", "what": "failed"}, {"at": 1, "what": 2}, {"at": 1, "what": "x", "by": []},
     {"at": 1, "what": "x", "error": 3}, {"at": True, "what": "x"}],
)  # fmt: skip
def test_a_damaged_entry_costs_only_itself(entry):
    good = json.loads(grown(2))["entries"]
    text = json.dumps({"entries": [good[0], entry, good[1]], "dropped": "many"})
    assert read(text) == (tuple(good), 0)


def test_a_huge_history_written_by_hand_shrinks():
    entries = [{"at": n, "what": "x" * 5_000} for n in range(3)]
    text = append(json.dumps({"entries": entries}), command("anna", "bury", "no"))
    assert len(text) <= MAX_BYTES
    assert read(text).entries[-1]["what"] == "bury"


def test_secrets_are_masked():
    url = "postgresql://shop:hunter2@db/shop"
    try:
        raise ValueError(f"cannot connect to {url}")  # noqa: EM102, TRY301
    except ValueError as error:
        frames = last_frames(error)
    text = append(None, attempt("relay", "failed", 1, f"cannot connect to {url}", frames))
    assert "hunter2" not in text
    (entry,) = read(text).entries
    assert "test_secrets_are_masked" in entry["traceback"]
    assert entry["error"] == "cannot connect to postgresql://shop:***@db/shop"


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no")


def deep(levels):
    if levels:
        deep(levels - 1)
    raise Unprintable


def test_frames_are_bounded_and_always_made():
    try:
        deep(500)
    except Unprintable as error:
        frames = last_frames(error)
    assert 0 < len(frames) <= 1_500
    assert "Unprintable" in frames


# -- with a relay --------------------------------------------------------------------------------
async def relayed(raised, attempts=2):
    """Relay one event to a handler that raises; returns the store."""
    handlers, store = Handlers(name="shop"), MemoryStore()

    @handlers.on("paid")
    async def charge(event, tx):
        raise raised

    await store.open()
    async with store.transaction() as tx:
        await Outbox().add(tx, Event("paid", {}, id="e"))
    policy = RetryPolicy(max_attempts=attempts, backoff=Constant(0.0))
    relay = Relay(store, handlers, name="box-1", retry=policy, poll_seconds=0.01)
    await relay.drain()
    return store


async def test_a_relay_records_each_failed_attempt_of_a_handler():
    store = await relayed(KeyError("no such order"))
    found = read((await store.details("e")).history)
    assert [(e["attempt"], e["by"], e["what"]) for e in found.entries] == [
        (1, "box-1", "failed"), (2, "box-1", "failed"),
    ]  # fmt: skip
    for entry in found.entries:
        assert "in charge" in entry["traceback"]
        assert entry["error"] == "KeyError: 'no such order'"


@pytest.mark.parametrize(
    ("signal", "what"), [(Reject("never"), "rejected"), (Retry("later"), "failed")]
)
async def test_what_a_handler_raises_on_purpose_has_no_traceback(signal, what):
    store = await relayed(signal, attempts=1)
    (entry,) = read((await store.details("e")).history).entries
    assert (entry["what"], entry["error"]) == (what, str(signal))
    assert "traceback" not in entry
