"""The demo's checker finds what is broken: each test doctors what the receiver wrote down."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys

import pytest

from postroom.demo import receiver, shop
from postroom.demo.checker import examine, render, to_json
from tests.cli.command import environment

GOOD = {
    "never_seen": True,
    "nothing_lost": True,
    "applied_once": True,
    "order_kept": True,
    "same_end": True,
}


class Files:
    """A shop with two orders of two events, one event rolled back, and what the receiver has."""

    def __init__(self, folder):
        self.shop, self.receiver = folder / "shop.db", folder / "receiver.db"
        self.run(self.shop, shop.TABLES)
        self.run(
            self.shop,
            "INSERT INTO orders VALUES ('o1', 'paid'), ('o2', 'paid');"
            "INSERT INTO changes (event_id, order_id, status) VALUES"
            " ('a1', 'o1', 'placed'), ('b1', 'o2', 'placed'), ('a2', 'o1', 'paid'), ('b2', 'o2', 'paid');"
            "INSERT INTO undone VALUES ('z', 'o1');",
        )
        self.run(self.receiver, receiver.TABLES)
        self.run(
            self.receiver,
            "INSERT INTO arrivals (n, event_id, order_id, relay) VALUES"
            " (10, 'a1', 'o1', 'one'), (20, 'b1', 'o2', 'one'), (30, 'a2', 'o1', 'one'),"
            " (40, 'b1', 'o2', 'two'), (50, 'a2', 'o1', 'two'), (60, 'b2', 'o2', 'two');"
            "INSERT INTO effects (n, event_id, order_id) VALUES"
            " (10, 'a1', 'o1'), (20, 'b1', 'o2'), (30, 'a2', 'o1'), (40, 'b2', 'o2');"
            "INSERT INTO orders VALUES ('o1', 'paid'), ('o2', 'paid');",
        )

    def run(self, path, script):
        conn = sqlite3.connect(path)
        conn.executescript(script)
        conn.close()

    def doctor(self, script):
        self.run(self.receiver, script)

    def examine(self):
        return examine(self.shop, self.receiver)

    def broken(self):
        report = self.examine()
        assert report.is_good is False
        promises = to_json(report)["promises"]
        return {name for name, kept in promises.items() if not kept}


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def test_all_is_well(files):
    report = files.examine()
    assert report.is_good
    assert to_json(report) == {
        "written": 4,
        "rolled_back": 1,
        "delivered": 4,
        "repeated_by_kill": 2,
        "repeated_otherwise": 0,
        "applied": 4,
        "orders": 2,
        "promises": GOOD,
        "problems": [],
    }
    assert render(report) == [
        "  written                            4    each in the transaction of its order",
        "  rolled back on purpose             1  ✓ none of them was delivered",
        "  delivered                          4  ✓ all written events, and no others",
        "  sent again after the kill          2    sent, but not settled at the kill",
        "  applied once                       4  ✓ duplicates had no effect",
        "  order kept                         2  ✓ orders, events in order of writing",
        "  same end                           2  ✓ orders have the same status in both",
    ]


@pytest.mark.promise("G2")
def test_a_lost_event(files):
    files.doctor(
        "DELETE FROM arrivals WHERE event_id = 'b2'; DELETE FROM effects WHERE event_id = 'b2'"
    )
    assert files.broken() == {"nothing_lost", "applied_once"}
    assert "b2 never arrived" in to_json(files.examine())["problems"]


@pytest.mark.promise("G6")
def test_an_event_that_arrived_and_was_not_applied(files):
    files.doctor("DELETE FROM effects WHERE event_id = 'b2'")
    assert files.broken() == {"applied_once"}


@pytest.mark.promise("G1")
def test_a_phantom_that_was_rolled_back(files):
    files.doctor("INSERT INTO arrivals (event_id, order_id, relay) VALUES ('z', 'o1', 'one')")
    assert files.broken() == {"never_seen"}
    assert to_json(files.examine())["problems"] == ["z was rolled back but delivered"]


@pytest.mark.promise("G1")
def test_a_phantom_that_nobody_wrote(files):
    files.doctor("INSERT INTO effects (event_id, order_id) VALUES ('ghost', 'o9')")
    assert files.broken() == {"never_seen"}


@pytest.mark.promise("G6")
def test_a_double_effect(files):
    files.doctor("INSERT INTO effects (event_id, order_id) VALUES ('b2', 'o2')")
    assert files.broken() == {"applied_once"}
    assert to_json(files.examine())["problems"] == ["b2 was applied 2 times"]


@pytest.mark.promise("G4")
def test_a_broken_order_of_arrival(files):
    files.doctor("UPDATE arrivals SET n = 5 WHERE n = 30")  # a2 before a1
    assert files.broken() == {"order_kept"}
    assert to_json(files.examine())["problems"] == ["o1: a1 arrived after the later a2"]


@pytest.mark.promise("G4")
def test_a_broken_order_of_effects(files):
    files.doctor("UPDATE effects SET n = 5 WHERE event_id = 'b2'")
    assert files.broken() == {"order_kept"}
    assert to_json(files.examine())["problems"] == ["o2: b1 was applied after the later b2"]


@pytest.mark.promise("G4")
def test_repeats_and_the_order_of_different_orders_break_nothing(files):
    files.doctor(
        "INSERT INTO arrivals (event_id, order_id, relay) VALUES ('a1', 'o1', 'two');"
        "UPDATE arrivals SET n = 5 WHERE n = 20"  # b1 before a1: another order
    )
    report = files.examine()
    assert report.is_good
    assert report.repeated_by_kill == 3


@pytest.mark.promise("G3")
def test_a_repeat_by_the_same_relay_is_counted_apart(files):
    files.doctor("UPDATE arrivals SET relay = 'one' WHERE n = 40")
    report = files.examine()
    assert (report.repeated_by_kill, report.repeated_otherwise) == (1, 1)
    assert "  sent again for other reasons       1    a slow machine?" in render(report)


def test_another_end(files):
    files.doctor("UPDATE orders SET status = 'placed' WHERE id = 'o1'")
    assert files.broken() == {"same_end"}
    assert to_json(files.examine())["problems"] == [
        "o1 is paid in the shop and placed at the receiver"
    ]


def test_a_broken_promise_is_told_and_fits_80_columns(files):
    values = ", ".join(f"('ghost-{n}', 'o1')" for n in range(5))
    files.doctor(f"INSERT INTO effects (event_id, order_id) VALUES {values}")
    lines = render(files.examine())
    assert "  rolled back on purpose             1  ✗ failed 5 times, see below" in lines
    assert lines[-5:] == [
        "never seen: failed",
        "  ghost-0 was delivered but never written",
        "  ghost-1 was delivered but never written",
        "  ghost-2 was delivered but never written",
        "  … and 2 more",
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("doctored", "code"), [("", 0), ("DELETE FROM arrivals WHERE n = 60", 1)])
def test_the_checker_as_a_process(files, tmp_path, doctored, code):
    files.doctor(doctored)
    command = [sys.executable, "-m", "postroom.demo", "checker"]
    done = subprocess.run(
        [*command, files.shop, files.receiver, "--json"],
        cwd=tmp_path, env=environment(), capture_output=True, check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == code
    assert json.loads(done.stdout)["promises"]["nothing_lost"] is (code == 0)


def test_a_terminal_without_the_signs_gets_plain_ones(files, tmp_path):
    command = [sys.executable, "-m", "postroom.demo", "checker", files.shop, files.receiver]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(PYTHONIOENCODING="ascii"),
        capture_output=True, check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0
    assert b"+ duplicates had no effect" in done.stdout
