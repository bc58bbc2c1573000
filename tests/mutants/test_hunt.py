"""The hunt itself: what it counts as caught, and what it does not."""

import pytest

from tests.mutants import hunt as hunting
from tests.mutants.hunt import BrokenHuntError, hunt, hunt_by_test, is_green

RETRY = "tests/unit/test_retry.py"


@pytest.fixture(autouse=True)
def _nothing_known():
    is_green.cache_clear()
    yield
    is_green.cache_clear()


def running(monkeypatch, *ends):
    """Let processes end like this, one after the other."""
    left = list(ends)
    monkeypatch.setattr(hunting, "_run", lambda *command, mutant="": left.pop(0))


def test_a_planted_bug_is_caught_by_a_test():
    assert hunt("one-deadline-for-all").startswith("test_lanes.py::")


def test_a_bug_that_a_test_does_not_see_survives():
    assert hunt_by_test("one-deadline-for-all", RETRY) is None


def test_a_test_that_is_red_anyway_catches_nothing(monkeypatch):
    running(monkeypatch, (1, "FAILED x::y"), (1, "FAILED x::y"))
    with pytest.raises(BrokenHuntError, match="red without the mutant"):
        hunt_by_test("any", "x::y")


@pytest.mark.parametrize(
    "end",
    [
        pytest.param((3, "FAILED x::y\nINTERNALERROR> KeyError"), id="an internal error"),
        pytest.param((2, "ERROR collecting"), id="not collected"),
        pytest.param((4, "no such test"), id="no such test"),
        pytest.param((5, "no tests ran"), id="nothing was run"),
        pytest.param((1, "no test is named"), id="a failure without a test"),
        pytest.param(
            (1, "tests/mutants/consumers.py:12: TypeError\nFAILED x::y"), id="it does not fit"
        ),
    ],
)
def test_a_run_that_broke_catches_nothing(monkeypatch, end):
    running(monkeypatch, (0, ""), end)
    with pytest.raises(BrokenHuntError, match="broke the test itself"):
        hunt_by_test("any", "x::y")


def test_what_the_code_raises_because_of_the_bug_is_a_catch(monkeypatch):
    end = "src/postroom/engine/relay/in_flight.py:12: TypeError\nFAILED tests/unit/test_x.py::test_y - Error"
    running(monkeypatch, (0, ""), (1, end))
    assert hunt_by_test("any", "x::y") == "test_x.py::test_y"


def test_a_busy_machine_may_be_late_once(monkeypatch):
    running(monkeypatch, (1, "late"), (0, ""), (0, ""))
    assert hunt_by_test("any", "x::y") is None
