"""Who owns which lane: fair share, hand-over, losses, deadlines. No clock, no store."""

from __future__ import annotations

import random

import pytest

from postroom.engine.relay.lanes import LaneKeeper, fair_share
from postroom.store import Lease, Member, Membership

LEASE = 10.0
SAFE = 9.0  # the part of a lease that a relay counts on, from before it was asked for


def membership(*members, **lanes):
    """`l3=("anna", 7)`: lane 3 is anna's by token 7; a third item False: it has run out."""
    given = {int(name[1:]): lease for name, lease in lanes.items()}
    leases = []
    for lane in range(64):
        owner, token, *live = given.get(lane, (None, 0, False))
        leases.append(Lease(lane, owner, token, live[0] if live else True))
    well = [m if isinstance(m, Member) else Member(m, healthy=True) for m in members]
    renewed = frozenset(lease.lane for lease in leases if lease.live)
    return Membership(tuple(well), tuple(leases), renewed)


def holding(owner, lanes, token=1):
    return {f"l{lane}": (owner, token) for lane in lanes}


def keeper(owner="anna", lanes=(), token=1, asked_at=0.0):
    made = LaneKeeper(owner, LEASE)
    made.taken(dict.fromkeys(lanes, token), asked_at)
    return made


def draining(made):
    return sorted(lane for lane, held in made.held.items() if held.draining)


# -- fair share ---------------------------------------------------------------------------------
@pytest.mark.promise("L4")
@pytest.mark.parametrize("count", range(1, 71))
def test_healthy_members_share_all_lanes_and_none_is_left_over(count):
    names = [f"relay-{n:02}" for n in range(count)]
    random.Random(count).shuffle(names)
    seen = membership(*names)
    shares = {name: fair_share(name, True, seen) for name in names}
    assert sum(shares.values()) == 64
    assert max(shares.values()) - min(shares.values()) <= 1


@pytest.mark.promise("L4")
def test_the_odd_lanes_go_to_the_first_in_the_alphabet():
    seen = membership("carl", "anna", "bert")
    assert [fair_share(n, True, seen) for n in ("anna", "bert", "carl")] == [22, 21, 21]
    many = membership(*(f"relay-{n:02}" for n in range(66)))
    assert [fair_share(f"relay-{n:02}", True, many) for n in (0, 63, 64, 65)] == [1, 1, 0, 0]


@pytest.mark.promise("L4")
def test_who_is_not_on_the_roster_yet_counts_itself():
    assert fair_share("anna", True, membership()) == 64
    assert fair_share("anna", True, membership("bert")) == 32


@pytest.mark.promise("L4", "L6")
def test_a_relay_whose_destination_is_away_gets_nothing_while_another_is_well():
    ill = Member("anna", healthy=False)
    seen = membership(ill, "bert", "carl")
    assert fair_share("anna", False, seen) == 0
    assert [fair_share(n, True, seen) for n in ("bert", "carl")] == [32, 32]


@pytest.mark.promise("L4")
def test_if_nobody_is_well_all_share():
    seen = membership(Member("anna", healthy=False), Member("bert", healthy=False))
    assert [fair_share(n, False, seen) for n in ("anna", "bert")] == [32, 32]


def test_what_the_relay_knows_of_itself_wins_over_what_its_row_says():
    """Its row was written by its last beat; meanwhile the destination has come back."""
    seen = membership(Member("anna", healthy=False), "bert")
    assert fair_share("anna", True, seen) == 32


# -- taking -------------------------------------------------------------------------------------
@pytest.mark.promise("L1")
def test_the_first_relay_asks_for_every_lane():
    plan = keeper().consider(membership("anna"), 0.0)
    assert sorted(plan.take) == list(range(64))
    assert plan.lost == []
    assert plan.abandon == {}


@pytest.mark.promise("L1")
def test_only_what_is_free_or_has_run_out_is_asked_for():
    held = holding("bert", range(64))
    held["l5"] = (None, 4, False)
    held["l9"] = ("carl", 2, False)
    plan = keeper().consider(membership("anna", "bert", **held), 0.0)
    assert sorted(plan.take) == [5, 9]


def test_never_more_than_the_share():
    plan = keeper().consider(membership("anna", "bert"), 0.0)
    assert len(plan.take) == 32
    plan = keeper(lanes=range(20)).consider(
        membership("anna", "bert", **holding("anna", range(20))), 0.0
    )
    assert len(plan.take) == 12


def test_two_that_start_together_ask_for_different_lanes():
    seen = membership("anna", "bert")
    first = keeper("anna").consider(seen, 0.0).take
    second = keeper("bert").consider(seen, 0.0).take
    assert set(first) & set(second) == set()


def test_hungry_while_below_the_share():
    made = keeper()
    made.consider(membership("anna", **holding("bert", range(64))), 0.0)
    assert made.below_share
    made = keeper(lanes=range(64))
    made.consider(membership("anna", **holding("anna", range(64))), 0.0)
    assert not made.below_share


# -- losing -------------------------------------------------------------------------------------
@pytest.mark.promise("L1", "G5")
@pytest.mark.parametrize(
    "lease",
    [("bert", 2), ("bert", 1), (None, 2, False), ("anna", 2), ("anna", 1, False)],
    ids=["taken", "owner", "deposed", "token", "expired"],
)
def test_a_lane_is_lost_by_owner_by_token_and_by_its_end(lease):
    made = keeper(lanes=[3, 4])
    plan = made.consider(membership("anna", l3=lease, l4=("anna", 1)), 50.0)
    assert plan.lost == [3]
    assert sorted(made.held) == [4]
    assert not made.may_publish(3, 50.0)
    assert made.may_publish(4, 50.0)


@pytest.mark.promise("L5")
def test_a_beat_that_saw_the_past_is_ignored():
    """The lane was taken again, under a higher token, while the beat was under way."""
    made = keeper(lanes=[3], token=1)
    made.taken({3: 2}, 5.0)
    plan = made.consider(membership("anna", l3=("anna", 1)), 4.0)
    assert plan.lost == []
    assert made.tokens() == {3: 2}
    assert made.held[3].deadline == 5.0 + SAFE


def test_what_was_lost_and_is_free_is_asked_for_again():
    made = keeper(lanes=range(64))
    held = holding("anna", range(64))
    held["l7"] = (None, 2, False)
    plan = made.consider(membership("anna", **held), 0.0)
    assert plan.lost == [7]
    assert plan.take == [7]


# -- hand-over ----------------------------------------------------------------------------------
@pytest.mark.promise("L4")
def test_when_another_appears_the_highest_lanes_are_drained():
    made = keeper(lanes=range(64))
    plan = made.consider(membership("anna", "bert", **holding("anna", range(64))), 0.0)
    assert plan == ([], [], {})
    assert draining(made) == list(range(32, 64))
    assert not made.may_publish(40, 0.0)
    assert made.readable(0.0) == list(range(32))


@pytest.mark.promise("L4")
def test_a_draining_lane_is_given_away_only_when_nothing_is_in_flight():
    made = keeper(lanes=range(64))
    made.consider(membership("anna", "bert", **holding("anna", range(64))), 0.0)
    busy = set(range(30, 62))
    assert made.drained(lambda: busy) == {62: 1, 63: 1}
    assert made.drained(tuple) == dict.fromkeys(range(32, 64), 1)


@pytest.mark.promise("L4")
def test_a_draining_lane_is_still_renewed_so_that_it_can_be_settled():
    made = keeper(lanes=range(64))
    seen = membership("anna", "bert", **holding("anna", range(64)))
    made.consider(seen, 0.0)
    made.consider(seen, 5.0)
    assert made.held[63].deadline == 5.0 + SAFE
    assert 63 in made.tokens()


def test_a_second_beat_drains_no_more():
    made = keeper(lanes=range(64))
    seen = membership("anna", "bert", **holding("anna", range(64)))
    for at in (0.0, 1.0, 2.0):
        made.consider(seen, at)
    assert draining(made) == list(range(32, 64))


def test_draining_is_undone_when_the_other_leaves_again():
    made = keeper(lanes=range(64))
    held = holding("anna", range(64))
    made.consider(membership("anna", "bert", **held), 0.0)
    plan = made.consider(membership("anna", **held), 1.0)
    assert draining(made) == []
    assert plan.take == []
    assert not made.below_share


def test_draining_is_undone_before_anything_new_is_taken():
    made = keeper(lanes=range(40))
    made.consider(membership("anna", "bert", **holding("anna", range(40))), 0.0)
    assert draining(made) == list(range(32, 40))
    plan = made.consider(membership("anna", **holding("anna", range(40))), 1.0)
    assert draining(made) == []
    assert sorted(plan.take) == list(range(40, 64))


def test_who_leaves_drains_everything_and_takes_nothing():
    made = keeper(lanes=range(10))
    plan = made.consider(membership("anna", **holding("anna", range(10))), 0.0, leaving=True)
    assert plan.take == []
    assert draining(made) == list(range(10))


@pytest.mark.promise("L6")
def test_who_is_unwell_drains_everything_if_another_is_well():
    made = keeper(lanes=range(10))
    seen = membership("anna", "bert", **holding("anna", range(10)))
    made.consider(seen, 0.0, healthy=False)
    assert draining(made) == list(range(10))


def test_who_is_unwell_and_alone_keeps_its_lanes():
    made = keeper(lanes=range(64))
    made.consider(membership("anna", **holding("anna", range(64))), 0.0, healthy=False)
    assert draining(made) == []


# -- work that hangs ----------------------------------------------------------------------------
@pytest.mark.promise("L6")
def test_hung_lanes_are_abandoned_to_a_healthy_member():
    made = keeper(lanes=[1, 2], token=7)
    seen = membership("anna", "bert", **holding("anna", [1, 2], 7), **holding("bert", range(3, 64)))
    plan = made.consider(seen, 0.0, stuck={2, 60})
    assert plan.abandon == {2: 7}
    assert sorted(made.held) == [1]


@pytest.mark.promise("L6")
@pytest.mark.parametrize("others", [(), (Member("bert", healthy=False),)])
def test_hung_lanes_are_kept_if_nobody_else_is_well(others):
    made = keeper(lanes=range(64))
    plan = made.consider(
        membership("anna", *others, **holding("anna", range(64))), 0.0, stuck={2}
    )  # fmt: skip
    assert plan.abandon == {}
    assert 2 in made.held


def test_an_abandoned_lane_is_not_asked_for_in_the_same_breath():
    """It still looks live and ours; only its release makes it free."""
    made = keeper(lanes=[1, 2])
    seen = membership("anna", "bert", l0=("bert", 1), **holding("anna", [1, 2]),
                  **holding("bert", range(3, 64)))  # fmt: skip
    assert made.consider(seen, 0.0, stuck={2}).take == []


# -- the local deadline (L6) --------------------------------------------------------------------
@pytest.mark.promise("L6")
def test_the_deadline_counts_from_before_the_request():
    made = keeper()
    made.taken({3: 1}, 100.0)  # asked at 100; the reply may have come much later
    assert made.may_publish(3, 108.9)
    assert not made.may_publish(3, 109.0)
    made.consider(membership("anna", l3=("anna", 1)), 105.0)
    assert made.may_publish(3, 113.9)
    assert not made.may_publish(3, 114.0)
    assert made.readable(114.0) == []


def test_a_late_reply_never_brings_the_deadline_forward():
    made = keeper(lanes=[3], asked_at=100.0)
    made.consider(membership("anna", l3=("anna", 1)), 95.0)
    assert made.held[3].deadline == 100.0 + SAFE


@pytest.mark.promise("L6")
def test_a_lane_past_its_deadline_may_still_be_settled():
    """Publishing stops early by the local clock; whether a settle counts is the store's decision."""
    made = keeper(lanes=[3], token=4, asked_at=0.0)
    assert not made.may_publish(3, 1_000.0)
    assert made.tokens([3]) == {3: 4}


@pytest.mark.promise("L6")
def test_a_lane_that_could_not_be_renewed_keeps_its_own_deadline():
    """E-2: its row is locked by another transaction; its neighbours are renewed."""
    made = keeper(lanes=[3, 4], asked_at=0.0)
    seen = membership("anna", l3=("anna", 1), l4=("anna", 1))
    plan = made.consider(seen._replace(renewed=frozenset({4})), 5.0)
    assert plan.lost == []
    assert made.readable(SAFE) == [4]
    assert made.stalled(SAFE) == [3]
    made.consider(seen, 12.0)
    assert made.readable(12.0) == [3, 4]
    assert made.stalled(12.0) == []


# -- tokens -------------------------------------------------------------------------------------
def test_tokens_of_what_is_held_and_of_nothing_else():
    made = keeper(lanes=[1, 2], token=5)
    assert made.tokens() == {1: 5, 2: 5}
    assert made.tokens([2, 9]) == {2: 5}
    made.drop([2, 40])
    assert made.tokens([1, 2]) == {1: 5}


def test_a_lane_taken_again_while_it_drains_goes_on_draining():
    made = keeper(lanes=range(64))
    made.consider(membership("anna", "bert", **holding("anna", range(64))), 0.0)
    made.taken({63: 2, 1: 2}, 1.0)
    assert made.held[63].draining
    assert not made.held[1].draining
    assert made.drained(tuple) | {63: 2} == made.drained(tuple)
