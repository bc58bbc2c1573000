"""`postroom list` for people: ages, ids that can be copied, keys, in narrow and wide terminals."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from postroom import Event, SyncOutbox
from postroom.cli.list_events import _short
from tests.cli.command import call

LONG = "order-" + "x" * 60


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0 s"), (59, "59 s"), (60, "1 min"), (700, "11 min"), (3_599, "59 min"),
        (3_600, "1 h 00 m"), (79_200 + 3_540, "22 h 59 m"), (172_799, "47 h 59 m"),
        (172_800, "2 days"), (86_400 * 12_345, "12,345 days"),
    ],
)  # fmt: skip
def test_ages(seconds, shown):  # U19: it was "0 days" from ten minutes to twelve hours
    assert _short(seconds) == shown


@pytest.fixture
def folder(tmp_path):
    call("migrate", "--store", "sqlite:///app.db", cwd=tmp_path)
    events = [
        Event("order.placed", 1, id="a" * 36, key="order-42"),
        Event("order.placed", 1, id=LONG, key="k" * 90),
        Event("order.placed", 1, id="plain"),
    ]
    with closing(sqlite3.connect(tmp_path / "app.db")) as conn, conn:
        SyncOutbox().add_many(conn, events)
    return tmp_path


def test_a_narrow_terminal(folder):  # U19
    lines = call(
        "list", "--oldest", "--store", "sqlite:///app.db", cwd=folder, COLUMNS="80"
    ).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith(f"pending    {'a' * 36} order.placed ")
    assert lines[2] == "           key order-42"
    assert lines[3] == f"pending    {LONG}"  # whole
    assert lines[5].startswith("           key kkkk")
    assert lines[6].split() == ["pending", "plain", "order.placed", "0", *lines[6].split()[4:]]
    assert len(lines) == 7


def test_a_wide_terminal(folder):  # U19
    lines = call(
        "list", "--oldest", "--store", "sqlite:///app.db", cwd=folder, COLUMNS="200"
    ).stdout.splitlines()
    assert max(map(len, lines)) <= 200
    assert lines[0].split() == ["state", "id", "type", "key", "tries", "age"]
    assert lines[1].split()[:5] == ["pending", "a" * 36, "order.placed", "order-42", "0"]
    assert lines[2] == f"pending    {LONG}"
    assert len(lines) == 5
