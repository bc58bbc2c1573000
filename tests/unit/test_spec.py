"""The model of the protocol: it covers the promises, holds, and misses what is taken out of it."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from spec.__main__ import main
from spec.catalog import SWITCHES, WORLDS
from spec.run import FOLDER, SpecError, break_it, check, search

BY_NAME = {world.name: world for world in WORLDS}


def numbers(defines):
    """How much of what, and which events: NAME=3 → {NAME: 3}; a bare name counts as 1."""
    pairs = (define.partition("=") for define in defines)
    return {name: int(value or 1) for name, _, value in pairs}


def test_every_promise_of_the_model_has_a_world_and_a_mechanism():
    promised = {"G2", "G3", "G4", "G5", "G6", "G7"}
    assert {promise for world in WORLDS for promise in world.promises} == promised
    assert {switch.promise for switch in SWITCHES} == promised


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda s: f"{s.promise}-{s.name}")
def test_what_a_switch_breaks_holds_without_it(switch):
    """A world with the same events and at least these faults keeps the promise."""
    wanted = numbers(switch.defines)
    same = {"N", "KEYS", "POISON"}

    def covers(world):
        has = numbers(world.defines)
        return (
            world.model == switch.model
            and switch.promise in world.promises
            and "BLOCK_POLICY" not in has
            and all(has.get(n) == wanted.get(n) for n in same)
            and all(has.get(n, 0) >= wanted[n] for n in wanted if n not in same)
        )

    assert any(map(covers, WORLDS))


def test_every_switch_is_one_that_the_model_knows_and_none_is_left_out():
    asked = set()
    for file in FOLDER.glob("*.pml"):
        asked |= set(re.findall(r"#ifn?def (\w+)", file.read_text()))
    faults = {
        "EXPIRIES",
        "CRASHES",
        "HANDOVERS",
        "FAILURES",
        "UNKNOWNS",
        "LOSSES",
        "REDELIVERIES",
        "REPLAYS",
    }
    promises = {"G2", "G3", "G4", "G5", "G7"}
    assert asked - faults - promises - {"POISON", "BLOCK_POLICY"} == {s.name for s in SWITCHES}


def test_the_page_names_every_world_and_every_mechanism():
    page = (FOLDER.parent / "docs/explanation/model.md").read_text()
    assert {switch.name for switch in SWITCHES} <= set(re.findall(r"\(`(\w+)`\) \|", page))
    for world in WORLDS:
        assert f"\n| {world.name}".replace("blocking", "blocking its key") in page or world.deep


@pytest.mark.slow
@pytest.mark.promise("G2", "G3", "G4", "G5", "G6", "G7")
@pytest.mark.parametrize(
    ("name", "states"),
    [("quiet", 369), ("a long key", 8_239), ("inbox", 194_565), ("handlers that kill", 248)],
)
def test_all_promises_hold_in_every_state(name, states):
    verdict = check(BY_NAME[name])
    assert verdict.violated is None
    assert verdict.states == states  # as the page says: a change here is a change of the model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("promise", "name", "says"),
    [
        ("G2", "CURSOR", "committed=="),
        ("G3", "NO_DRAIN", "excuse["),
        ("G4", "NO_BLOCK", "(seen|dead)"),
        ("G5", "NO_LOCK", "token==relay[r].s.token"),
        ("G6", "ACK_FIRST", "effects[0]==1"),
        ("G7", "NO_SUSPECTS", "dead"),
    ],
)
def test_each_promise_breaks_without_its_mechanism(promise, name, says):
    [switch] = [s for s in SWITCHES if (s.promise, s.name) == (promise, name)]
    violated = break_it(switch).violated
    assert violated is not None
    assert says in violated


@pytest.mark.slow
def test_the_steps_to_a_broken_promise_can_be_seen():
    done = CliRunner().invoke(main, ["--steps", "COUNT_AFTER"])
    assert done.exit_code == 0, done.output
    assert "G7 breaks" in done.output
    assert "handlers.pml" in done.output


def test_an_unknown_name_is_refused():
    done = CliRunner().invoke(main, ["NO_SUCH"])
    assert done.exit_code == 2
    assert "there is no NO_SUCH" in done.output


def test_a_missing_program_is_an_error(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SpecError, match="apt-get install spin gcc"):
        search("inbox.pml", ())
