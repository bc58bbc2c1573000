"""The relay's own code in simulated worlds: every seed another mixture of faults."""

import pytest

from tests.sim.run import simulate

WORLDS = 10


@pytest.mark.req("S1.4", "S2.3", "S2.4", "S3.5", "S4.6", "S4.7")
@pytest.mark.promise("G1", "G2", "G3", "G4", "G5", "G6", "G7")
@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 4 * WORLDS, WORLDS))  # `make nightly` goes on
def test_no_promise_is_broken(first):
    for seed in range(first, first + WORLDS):
        found, _, world = simulate(seed)
        assert not found, f"seed {seed}, faults {dict(world.chaos.fired)}"


def test_a_seed_is_always_the_same_world():
    first, again = simulate(11)[2], simulate(11)[2]
    assert first.arrivals == again.arrivals
    assert first.chaos.fired == again.chaos.fired


# Worlds that once broke a promise, by the faults that did it.
@pytest.mark.parametrize(
    ("faults", "worlds"),
    [
        # One worker had nothing to try with and kept the other from trying: the breaker stayed open.
        pytest.param(("outage", "store_conflict"), 20, id="a try without an event"),
        # A relay that gave up its lanes during an outage had no event left to find the broker with.
        pytest.param(("outage", "join", "leave", "pause"), 40, id="unwell without a lane"),
        # The one event that could be tried closed the channel each time, and was never charged.
        pytest.param(("outage", "breaker", "fail"), 20, id="only poison to try"),
        # E-1: outcomes of events that the store had lost ended others, which had their numbers.
        pytest.param(("set_back", "slow_broker", "slow_store"), 40, id="a store that is set back"),
    ],
)
def test_a_world_that_once_broke(faults, worlds):
    for seed in range(worlds):
        found, _, world = simulate(seed, faults)
        assert not found, f"seed {seed}, faults {dict(world.chaos.fired)}"


@pytest.mark.parametrize(
    ("faults", "worlds"),
    [
        pytest.param(("controls", "expiry", "delay"), 5, id="in quiet worlds"),
        pytest.param(
            ("controls", "expiry", "crash", "join", "leave", "unknown_missing", "fail"), 4,
            id="while relays die",
        ),
        pytest.param(
            ("controls", "expiry", "limits", "join", "leave", "unknown_missing"), 4,
            id="with limits",
        ),
    ],
)  # fmt: skip
def test_operators_and_times_to_be_sent_by(faults, worlds):
    """Paused streams, topics and consumers send nothing, spend no attempt and lose nothing; limits
    are kept; events are not sent after their time, and those that expire are counted.
    """
    paused = expired = 0
    for seed in range(worlds):
        found, _, world = simulate(seed, faults)
        assert not found, f"seed {seed}, faults {dict(world.chaos.fired)}"
        paused += world.chaos.fired["controls"]
        expired += len(world.operators.expired)
    assert paused
    assert expired


@pytest.mark.promise("F2")
def test_what_is_set_aside_is_not_read_and_set_aside_again():
    """Followers of a refused event were read and set aside every few milliseconds."""
    found, _, world = simulate(134)
    assert world.refused
    assert not found


def test_the_first_effect_of_handlers_in_transactions_of_their_own_is_lost():
    """Nobody had found out yet that their notes are in the store."""
    faults = (
        "set_back",
        "slow_broker",
        "slow_store",
        "pause",
        "crash",
        "killer",
        "operator",
        "delay",
    )
    found, _, world = simulate(9050, faults)
    assert world.undone
    assert not found
