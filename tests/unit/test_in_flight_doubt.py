"""Suspects, orphans, counted starts and lost lanes: what is in doubt is neither lost nor settled."""

from __future__ import annotations

import pytest

from postroom.broker import CONFIRMED, UNSENT, Outcome, Verdict
from postroom.settlement import FailedOutcome, Missing
from postroom.testing.broker_tools import make_record
from tests.unit.tower import ALL, FAILED, OUTAGE, UNKNOWN, Tower, keyed, seqs, without_entries


# -- suspects -----------------------------------------------------------------------------------
def suspect(tower, *records):
    """Send a run whose publish call ends without a word."""
    tower.flight.ended(tower.fly(*records), "cut")
    return tower.suspects[-1]


@pytest.mark.promise("P3")
def test_a_suspect_is_tried_once_per_turn_and_confirmed_alone():
    tower = Tower()
    one, two = keyed(1, 2)
    record = suspect(tower, one, two)
    run = tower.flight.send_alone(record, 5.0)
    assert run is not None
    assert run.alone
    assert tower.flight.send_alone(record, 5.0) is None
    tower.flight.report(record, CONFIRMED)
    settlement, _ = tower.settle()
    assert settlement.done == [one]
    assert tower.flight.is_empty
    assert tower.flight.send_alone(record, 6.0) is None


@pytest.mark.promise("P3")
def test_a_suspect_that_is_unknown_alone_comes_back_and_is_charged_at_the_third_time():
    tower = Tower()
    record = suspect(tower, *keyed(1))
    for turn in (2, 3):
        run = tower.flight.send_alone(record, 0.0)
        tower.flight.ended([(record.key_hash, run)], "cut")
        assert len(tower.suspects) == turn
        assert not tower.flight.wants_settle
    run = tower.flight.send_alone(record, 0.0)
    tower.flight.ended([(record.key_hash, run)], "cut")
    settlement, _ = tower.settle()
    assert without_entries(settlement.failed) == [FailedOutcome(record, 1, 7.0, "cut")]
    assert tower.flight.is_empty


@pytest.mark.promise("P3")
def test_a_late_answer_ends_a_suspect_before_it_is_tried():
    """The first publish call timed out, and its confirm came after all: no second copy is sent."""
    tower = Tower()
    record = suspect(tower, *keyed(1))
    tower.flight.report(record, CONFIRMED)
    assert tower.flight.send_alone(record, 0.0) is None
    settlement, _ = tower.settle()
    assert settlement.done == [record]
    assert tower.flight.waiting_for_outcomes == 0
    assert tower.flight.is_empty


def test_a_suspect_that_cannot_be_tried_now_is_let_go():
    tower = Tower()
    record = suspect(tower, *keyed(1))
    tower.flight.withdraw(record)
    assert tower.flight.is_empty
    assert tower.flight.waiting_for_outcomes == 0
    tower.flight.withdraw(record)
    assert tower.flight.waiting_for_outcomes == 0
    assert tower.admit(record) == [record]


def test_a_suspect_that_has_its_outcome_or_is_being_tried_is_not_withdrawn():
    tower = Tower()
    record = suspect(tower, *keyed(1))
    tower.flight.report(record, OUTAGE)
    tower.flight.withdraw(record)
    assert tower.flight.waiting_for_outcomes == 0
    assert tower.flight.busy_keys() == [record.key_hash]  # until it is settled
    tower.settle()
    record = suspect(tower, *keyed(2))
    tower.flight.send_alone(record, 0.0)
    tower.flight.withdraw(record)
    assert tower.flight.waiting_for_outcomes == 1


# -- orphans (R2, H1) ---------------------------------------------------------------------------
@pytest.mark.promise("R2", "H1")
@pytest.mark.req("S2.3")
def test_what_a_dead_relay_left_processing_is_a_suspect_and_its_key_waits():
    tower = Tower(counts_at_start=True)
    (orphan,) = keyed(1, state="processing", attempts=1)
    follower, other = make_record(2, key="k"), make_record(3, key="other")
    assert tower.admit(orphan, follower, other) == [other]
    assert tower.suspects == [orphan]
    assert tower.flight.waiting_for_outcomes == 2


@pytest.mark.promise("H1", "G7")
def test_an_orphan_without_attempts_left_is_buried_unsent():
    tower = Tower(counts_at_start=True)
    (orphan,) = keyed(1, state="processing", attempts=5)
    (follower,) = keyed(2)
    assert tower.admit(orphan, follower) == []
    assert tower.suspects == []
    settlement, _ = tower.settle()
    assert [(burial.record, burial.attempts) for burial in settlement.dead] == [(orphan, 5)]
    assert tower.admit(follower) == [follower]


@pytest.mark.promise("H1")
def test_an_orphan_behind_a_pending_event_ends_the_run_before_it():
    """A late committer of a lower number stands before it; it is still tried alone, at its turn."""
    tower = Tower(counts_at_start=True)
    late, orphan, follower = keyed(1)[0], keyed(2, state="processing", attempts=5)[0], keyed(3)[0]
    assert tower.admit(late, orphan, follower) == [late]
    tower.flight.report(late, CONFIRMED)
    tower.settle()
    assert tower.admit(orphan, follower) == []
    settlement, _ = tower.settle()
    assert [burial.record for burial in settlement.dead] == [orphan]


# -- starts (H1) --------------------------------------------------------------------------------
@pytest.mark.promise("H1")
@pytest.mark.req("S2.3")
async def test_a_start_is_granted_when_it_has_been_counted():
    tower = Tower(counts_at_start=True)
    (one,) = keyed(1)
    tower.admit(one)
    granted = tower.flight.start(one)
    assert not granted.done()
    assert tower.flight.wants_start
    assert tower.flight.wants_settle
    settlement, _ = tower.settle()
    assert settlement.starts == [one]
    assert granted.result() is True
    assert not tower.flight.wants_start


@pytest.mark.promise("H1", "G5")
async def test_a_start_is_refused_when_the_lane_is_lost():
    tower = Tower(counts_at_start=True)
    one, stranger = make_record(1, key="k"), make_record(9, key="z")
    tower.admit(one)
    granted = tower.flight.start(one)
    tower.settle(lanes=())
    assert granted.result() is False
    tower.flight.forget({one.lane})
    assert tower.flight.start(one).result() is False
    assert tower.flight.start(stranger).result() is False
    assert not tower.flight.wants_settle


@pytest.mark.promise("H1", "G2")
async def test_a_start_is_refused_when_the_store_has_lost_the_event():  # E-1
    """The handler does not run, and the key is free for what the store has under it now."""
    tower = Tower(counts_at_start=True)
    (one,) = keyed(1)
    runs = tower.fly(one)
    granted = tower.flight.start(one)
    pending = tower.collect()
    pending.settlement.missing = [Missing(one, replaced=True)]
    tower.flight.settled(pending, ALL, tower.may)
    assert granted.result() is False
    tower.flight.ended(runs, "not begun")
    assert tower.flight.is_empty
    assert not tower.flight.wants_settle
    assert tower.suspects == []


@pytest.mark.promise("H1", "G2")
async def test_an_event_with_the_number_of_one_that_was_begun_is_not_begun():  # E-1
    tower = Tower(counts_at_start=True)
    old, new = make_record(1, key="a", id="old"), make_record(1, key="b", id="new")
    tower.fly(old)
    tower.flight.start(old)
    tower.settle()
    assert tower.flight.is_begun(old)
    tower.fly(new)
    assert not tower.flight.is_begun(new)
    tower.flight.report(new, UNSENT)
    settlement, _ = tower.settle()
    assert settlement.returned == []


@pytest.mark.promise("H1", "L6")
async def test_a_start_that_was_counted_too_late_is_given_back():
    """Its settle took so long that the deadline has passed: the handler must not run."""
    tower = Tower(counts_at_start=True)
    (one,) = keyed(1)
    tower.admit(one)
    granted = tower.flight.start(one)
    pending = tower.collect()
    tower.lost = {one.lane}
    tower.flight.settled(pending, ALL, tower.may)
    assert granted.result() is False
    tower.lost = set()
    tower.flight.report(one, UNSENT)
    settlement, _ = tower.settle()
    assert settlement.returned == [one]
    assert (settlement.failed, settlement.done) == ([], [])


@pytest.mark.promise("H1", "G5")
@pytest.mark.parametrize("ends_first", [True, False])
async def test_a_lane_that_is_lost_while_a_start_is_counted_leaves_nothing_begun(ends_first):
    # E-susp.8: when the lane is taken again, the event would run without a counted attempt.
    tower = Tower(counts_at_start=True)
    (one,) = keyed(1)
    runs = tower.fly(one)
    granted = tower.flight.start(one)
    pending = tower.collect()
    tower.flight.forget({one.lane})
    if ends_first:
        tower.flight.ended(runs, "lost")
    tower.flight.settled(pending, ALL, tower.may)
    assert granted.result() is False
    if not ends_first:
        tower.flight.ended(runs, "lost")
    tower.settle()
    assert tower.admit(one) == [one]
    assert not tower.flight.is_begun(one)


async def test_a_start_nobody_waits_for_any_more_is_no_error():
    tower = Tower(counts_at_start=True)
    (one,) = keyed(1)
    tower.admit(one)
    tower.flight.start(one).cancel()
    tower.settle()
    tower.flight.ended(tower.flight.runs_of([one]), "stopped")
    assert tower.suspects == [one._replace(attempts=1)]


@pytest.mark.promise("H1")
@pytest.mark.parametrize("outcome", [OUTAGE, UNSENT])
async def test_an_attempt_that_was_counted_and_came_to_nothing_is_given_back(outcome):
    tower = Tower(counts_at_start=True)
    (one,) = keyed(1)
    tower.admit(one)
    tower.flight.start(one)
    tower.settle()
    tower.flight.report(one, outcome)
    settlement, _ = tower.settle()
    assert settlement.returned == [one]
    assert tower.flight.is_empty


@pytest.mark.promise("H1")
async def test_an_attempt_that_was_counted_is_not_counted_twice():
    tower = Tower(counts_at_start=True)
    (one,) = keyed(1, attempts=2)
    tower.admit(one)
    tower.flight.start(one)
    tower.settle()
    tower.flight.report(one, FAILED)
    settlement, _ = tower.settle()
    assert without_entries(settlement.failed) == [FailedOutcome(one, 3, 7.0, "boom")]
    assert settlement.returned == []


@pytest.mark.promise("H1", "P3")
async def test_a_suspect_keeps_the_attempt_that_made_it_one():
    tower = Tower(counts_at_start=True)
    (one,) = keyed(1, attempts=2)
    runs = tower.fly(one)
    tower.flight.start(one)
    tower.settle()
    tower.flight.ended(runs, "cut")
    record = one._replace(attempts=3)
    assert tower.suspects == [record]
    run = tower.flight.send_alone(record, 0.0)
    tower.flight.start(record)
    settlement, _ = tower.settle()
    assert settlement.starts == [record]
    tower.flight.ended([(record.key_hash, run)], "cut")
    settlement, _ = tower.settle()
    assert without_entries(settlement.failed) == [FailedOutcome(record, 4, 7.0, "cut")]


# -- lost lanes ---------------------------------------------------------------------------------
@pytest.mark.promise("G5", "L2")
def test_outcomes_of_a_lost_lane_do_not_count_and_its_keys_stay_busy_until_the_call_ends():
    tower = Tower()
    one, two = keyed(1, 2)
    runs = tower.fly(one, two)
    tower.flight.confirm([one])
    tower.flight.forget({one.lane})
    assert tower.flight.repeats == 1
    assert tower.flight.busy_keys() == [one.key_hash]
    assert not tower.flight.wants_settle
    tower.flight.report(two, CONFIRMED)
    tower.flight.ended(runs, "cut")
    assert tower.flight.repeats == 2
    assert not tower.flight.wants_settle
    assert tower.suspects == []
    assert tower.flight.is_empty
    assert tower.admit(one, two) == [one, two]


@pytest.mark.promise("G5")
@pytest.mark.parametrize("outcome", [FAILED, UNKNOWN, OUTAGE, Outcome(Verdict.REJECTED)])
def test_a_ghost_is_not_judged(outcome):
    tower = Tower()
    (one,) = keyed(1, attempts=4)
    tower.admit(one)
    tower.flight.forget({one.lane})
    tower.flight.report(one, outcome)
    assert (tower.attempts, tower.outages, tower.suspects) == ([], [], [])
    assert not tower.flight.wants_settle
    assert tower.flight.is_empty


@pytest.mark.promise("G5")
async def test_a_ghost_gives_nothing_back():
    """The lane may be ours again by then, and the row begun by another relay in between."""
    tower = Tower(counts_at_start=True)
    one, two = keyed(1, 2)
    tower.admit(one, two)
    tower.flight.start(one)
    tower.flight.start(two)
    tower.settle()
    tower.flight.forget({one.lane})
    tower.flight.report(one, UNSENT)
    tower.flight.report(two, UNSENT)
    assert not tower.flight.wants_settle
    assert tower.flight.is_empty


def test_forgetting_leaves_other_lanes_alone():
    tower = Tower()
    a, b = make_record(1, key="a"), make_record(2, key="b")
    assert a.lane != b.lane
    tower.admit(a, b, make_record(8, key="c", barrier=7))
    tower.flight.confirm([a, b])
    tower.flight.forget({a.lane, make_record(8, key="c").lane})
    tower.flight.forget(())
    settlement, _ = tower.settle()
    assert settlement.done == [b]
    assert settlement.parked == []
    assert tower.flight.repeats == 1


def test_forgetting_takes_failures_burials_and_closed_runs_with_it():
    tower = Tower()
    a, b = make_record(1, key="a"), make_record(2, key="b", attempts=4)
    tower.admit(a, b)
    tower.flight.report(a, FAILED)
    tower.flight.report(b, FAILED)
    tower.flight.forget({a.lane, b.lane})
    assert tower.flight.is_empty
    settlement, _ = tower.settle()
    assert not settlement
    assert tower.flight.repeats == 0


def test_a_suspect_of_a_lost_lane_that_waits_for_its_turn_is_dropped():
    tower = Tower()
    record = suspect(tower, *keyed(1))
    tower.flight.forget({record.lane})
    assert tower.flight.is_empty
    assert tower.flight.waiting_for_outcomes == 0
    assert tower.flight.send_alone(record, 0.0) is None


# -- counting what is thrown away (P4) ----------------------------------------------------------
@pytest.mark.promise("P4", "G3", "L3")
def test_a_fenced_settle_counts_what_was_thrown_away_and_what_will_be_repeated():
    tower = Tower()
    (a1, a2, a3), b = keyed(1, 2, 3, key="a"), make_record(4, key="b")
    tower.admit(a1, a2, a3, b)
    tower.flight.confirm([a1, b])
    tower.flight.report(a2, FAILED)
    tower.flight.report(a3, CONFIRMED)  # behind the failure: a repeat whatever happens
    settlement, fenced = tower.settle(lanes={b.lane})
    assert seqs(settlement.done) == [1, 4]
    assert fenced == 2  # a1 done, a2 failed
    assert tower.flight.repeats == 2  # a1 and a3
    assert tower.flight.is_empty


@pytest.mark.promise("P4")
def test_what_was_settled_before_is_not_counted_as_thrown_away():
    tower = Tower()
    one, two = keyed(1, 2)
    tower.admit(one, two)
    tower.flight.confirm([one])
    tower.settle()
    tower.flight.confirm([two])
    _, fenced = tower.settle(lanes=())
    assert (fenced, tower.flight.repeats) == (1, 1)


@pytest.mark.promise("P4")
def test_a_run_that_is_half_way_is_counted_too():
    tower = Tower()
    one, two = keyed(1, 2)
    runs = tower.fly(one, two)
    tower.flight.confirm([one])
    _, fenced = tower.settle(lanes=())
    assert (fenced, tower.flight.repeats) == (1, 1)
    tower.flight.forget({one.lane})
    tower.flight.confirm([two])
    tower.flight.ended(runs, "cut")
    assert tower.flight.repeats == 2
    assert tower.flight.is_empty


@pytest.mark.promise("P4")
def test_a_lane_lost_while_its_settle_is_under_way_is_counted_once():
    tower = Tower()
    (one,) = keyed(1)
    tower.admit(one)
    tower.flight.confirm([one])
    pending = tower.collect()
    tower.flight.forget({one.lane})
    assert tower.flight.settled(pending, (), tower.may) == 1
    assert tower.flight.repeats == 1
    assert tower.flight.is_empty


def test_a_settle_does_not_end_a_newer_run_of_the_same_key():
    """Its lane was lost and taken again while the settle was under way."""
    tower = Tower()
    one, two = keyed(1, 2)
    tower.admit(one)
    tower.flight.confirm([one])
    pending = tower.collect()
    tower.flight.forget({one.lane})
    tower.admit(one, two)
    tower.flight.settled(pending, (), tower.may)
    assert tower.flight.busy_keys() == [one.key_hash]
    tower.flight.confirm([one, two])
    settlement, _ = tower.settle()
    assert settlement.done == [one, two]
