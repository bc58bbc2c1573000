"""The checker of the torture notices what it is there for, and is quiet when all is well."""

import random

import pytest

from postroom.record import key_hash, lane_of
from tests.torture import faults
from tests.torture.checker import Evidence, check
from tests.torture.history import History, read
from tests.torture.shrinking import shrink

LANE = lane_of(key_hash(None, "a", ""))
COMMITTED = {
    "a1": ("a", 1, 10, False),
    "a2": ("a", 2, 10, False),
    "b1": ("b", 1, 10, False),
    "bad": ("b", 2, 99, True),
}
ARRIVALS = [("a1", "a", 1, 10), ("b1", "b", 1, 10), ("a2", "a", 2, 10)]
DEAD = {"bad": ("b", 2, 99)}
TOLD = [
    {"what": "ok", "ids": ["a1", "a2"]},
    {"what": "ok", "ids": ["b1", "bad"]},
    {"what": "fail", "ids": ["ghost"]},
]
TAKEN = [(LANE, 1, "anna", None, None)]


def found(**changes):
    well = {
        "committed": COMMITTED, "arrivals": ARRIVALS, "dead": DEAD, "leases": TAKEN,
        "histories": TOLD, "exactly_once": False,
    }  # fmt: skip
    return check(Evidence(**{**well, **changes}))


def test_all_is_well():
    assert found() == []
    assert found(exactly_once=True) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"arrivals": ARRIVALS[1:]}, "I1 lost: 1 (a1)"),
        ({"arrivals": [*ARRIVALS, ("ghost", "a", 3, 1)]}, "I2 phantom: 1 (ghost)"),
        ({"arrivals": [("a1", "a", 1, 9), *ARRIVALS[1:]]}, "I2 changed on the way: 1 (a1)"),
        ({"arrivals": ARRIVALS[::-1]}, "I3 order: key a: 1 was first seen after 2"),
        ({"arrivals": [*ARRIVALS, ARRIVALS[0]]}, "I4 copies that nothing explains: 1 (a1)"),
        (
            {"arrivals": [*ARRIVALS, ARRIVALS[0]], "exactly_once": True},
            "I7 took effect more than once: 1 (a1)",
        ),
        ({"leases": [*TAKEN, (LANE, 2, "ben", "anna", 0.5)]}, "taken 0.500 s before its lease"),
        ({"leases": [(LANE, 2, "ben", None, None), *TAKEN]}, f"I5 lane {LANE}: token 1 after 2"),
        ({"dead": {}}, "I8 poison that is not dead: 1 (bad)"),
        ({"dead": {**DEAD, "a2": ("a", 2, 10)}}, "I8 buried although nothing was wrong with them"),
        ({"dead": {"bad": ("b", 2, 98)}}, "I8 dead letters that are not whole: 1 (bad)"),
        ({"histories": [*TOLD, {"what": "ok", "ids": ["c1"]}]}, "I0 confirmed but not there"),
        ({"histories": [*TOLD, {"what": "fail", "ids": ["a1"]}]}, "I0 rolled back but there"),
        ({"histories": [*TOLD, {"what": "violation", "text": "I9 stuck"}]}, "I9 stuck"),
    ],
)
def test_each_broken_promise_is_told(changes, told):
    assert any(told in line for line in found(**changes)), found(**changes)


@pytest.mark.parametrize(
    "explained",
    [
        {"leases": [*TAKEN, (LANE, 2, "ben", "anna", -0.1)]},  # taken from one who was gone
        {"histories": [*TOLD, {"what": "fault", "kind": "kill broker"}]},
        {"histories": [*TOLD, {"what": "fault", "kind": "swallow store"}]},
    ],
)
def test_a_copy_may_have_its_reasons(explained):
    assert found(arrivals=[*ARRIVALS, ARRIVALS[0]], **explained) == []


def test_a_lane_that_was_given_back_explains_no_copy():
    handed_over = [*TAKEN, (LANE, 2, None, "anna", 1.0), (LANE, 3, "ben", None, None)]
    assert found(arrivals=[*ARRIVALS, ARRIVALS[0]], leases=handed_over) != []


def test_a_torn_line_of_a_history_is_passed_over(tmp_path):
    History(tmp_path / "one.jsonl", "one").note("ok", ids=["a"])
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write('{"at": 1, "wh')
    (line,) = read(tmp_path)
    assert (line["process"], line["what"], line["ids"]) == ("one", "ok", ["a"])


def test_a_plan_follows_from_its_seed():
    choices = faults.kinds("postgresql", "rabbitmq", wires=["store", "broker"])
    assert faults.plan(7, 50, choices) == faults.plan(7, 50, choices)
    assert faults.plan(7, 50, choices) != faults.plan(8, 50, choices)
    assert {fault.kind for fault in faults.plan(7, 1_000, choices)} == set(choices)


def test_no_clock_is_set_wrong_where_the_host_is_the_clock():
    assert "relay with a wrong clock" not in faults.kinds("sqlite", "handlers", wires=[])


@pytest.mark.parametrize("culprits", [{3}, {3, 17}, {0, 1, 19}])
def test_the_culprits_are_found(culprits):
    asked = []

    def breaks(numbers):
        asked.append(numbers)
        return culprits <= set(numbers)

    assert shrink(range(20), breaks) == sorted(culprits)
    assert len(asked) < 60


def test_what_cannot_be_shortened_stays():
    rng = random.Random(1)
    few = sorted(rng.sample(range(100), 5))
    assert shrink(few, lambda numbers: numbers == few) == few
