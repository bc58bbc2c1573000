"""One trouble is one group, whatever ids, numbers and times its errors carry."""

from __future__ import annotations

import pytest

from postroom.model.dead_letters import DeadCause, Group, fingerprint, group, pattern


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("no customer 4711", "no customer <n>"),
        ("no customer 0199c1a0-7f3e-7aaa-8d43-0c2f5be1d9aa!", "no customer <id>!"),
        ("key deadbeef00112233 is taken", "key <id> is taken"),
        ("since 2026-05-01T12:00:00.5+02:00 away", "since <time> away"),
        ("10.0.0.1:5432 refused", "<address> refused"),
        ("at 0x7f3a21", "at <n>"),
        ("30.5 s, 1,200 bytes", "<n> s, <n> bytes"),
        ("a\n  b\tc", "a b c"),
        ("decade facade", "decade facade"),
        ("", ""),
        (None, ""),
    ],
)
def test_what_differs_from_event_to_event_is_left_out(error, expected):
    assert pattern(error) == expected


def test_a_long_error_is_cut():
    assert len(pattern("x " * 1_000)) == 200


def test_the_name_is_short_and_the_same_for_ever():
    assert fingerprint("order.created", "no customer 1") == "27befce5"
    assert fingerprint("order.created", "no customer 1") == fingerprint(
        "order.created", "no customer 22"
    )
    assert fingerprint("order.created", "x") != fingerprint("order.paid", "x")
    assert len(fingerprint("a", None)) == 8


@pytest.mark.parametrize("step", [1, -1], ids=["latest first", "latest last"])
def test_groups_add_up_and_the_example_is_the_latest(step):
    found = group(
        [
            DeadCause("a", "no customer 1", 2, 10, 20),
            DeadCause("a", "no customer 2", 3, 5, 15),
            DeadCause("b", "no customer 1", 9, 1, 2),
        ][::step]
    )
    assert found == [
        Group(fingerprint("b", "no customer 1"), "b", "no customer <n>", "no customer 1", 9, 1, 2),
        Group(fingerprint("a", "no customer 1"), "a", "no customer <n>", "no customer 1", 5, 5, 20),
    ]
