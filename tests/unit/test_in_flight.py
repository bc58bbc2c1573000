"""From a read to its settle: what is published, what may be settled, and what stays busy."""

from __future__ import annotations

import pytest

from postroom.broker import CONFIRMED, UNSENT, Outcome, Verdict
from postroom.settlement import DeadOutcome, FailedOutcome
from postroom.testing.broker_tools import make_record
from tests.unit.tower import ALL, FAILED, OUTAGE, Tower, keyed, seqs, without_entries

by_either_call = pytest.mark.parametrize("how", ["report", "confirm"])


# -- admitting ----------------------------------------------------------------------------------
def test_what_is_read_is_published_in_its_order_and_its_keys_are_busy():
    tower = Tower()
    a1, b2, a3 = make_record(1, key="a"), make_record(2, key="b"), make_record(3, key="a")
    assert tower.admit(a1, b2, a3) == [a1, b2, a3]
    assert tower.flight.busy_keys() == [a1.key_hash, b2.key_hash]
    assert tower.flight.busy_lanes() == {a1.lane, b2.lane}
    assert tower.flight.waiting_for_outcomes == 3
    assert not tower.flight.is_empty
    assert not tower.flight.wants_settle


def test_lanes_that_may_not_be_published_are_left_out():
    tower = Tower()
    a, b = make_record(1, key="a"), make_record(2, key="b")
    tower.lost = {a.lane}
    assert tower.admit(a, b) == [b]
    assert tower.flight.busy_keys() == [b.key_hash]


# T-B3
@pytest.mark.promise("G7", "G4")
def test_what_cannot_be_read_is_never_sent_and_is_rejected_at_its_turn():
    tower = Tower()
    one, two, three = keyed(1, 2, 3)
    odd = two._replace(state="unreadable", last_error="topic is missing")
    other = make_record(4, key="other")
    assert tower.admit(one, odd, three, other) == [one, other]
    tower.flight.confirm([one, other])
    settlement, _ = tower.settle()
    assert (settlement.done, settlement.dead) == ([one, other], [])
    assert tower.admit(odd, three) == []
    settlement, _ = tower.settle()
    assert without_entries(settlement.dead) == [DeadOutcome(odd, 1, "topic is missing")]
    assert tower.admit(three) == [three]


def test_an_expired_event_is_proposed_at_its_turn_and_never_sent():
    tower = Tower()
    one, two, three = keyed(1, 2, 3)
    over, other = two._replace(expires_us=1), make_record(4, key="other", expires_us=2**60)
    assert tower.admit(one, over, three, other) == [one, other]
    tower.flight.confirm([one, other])
    settlement, _ = tower.settle()
    assert (settlement.done, settlement.expired) == ([one, other], [])
    assert tower.admit(over, three) == []
    assert tower.flight.wants_settle
    assert not tower.flight.is_idle(over.lane)
    settlement, _ = tower.settle()
    assert (settlement.expired, settlement.dead, tower.attempts) == ([over], [], [])
    assert tower.flight.is_empty
    assert tower.admit(three) == [three]


def test_an_event_that_the_store_keeps_is_sent():
    """The host's clock is wrong: the event is proposed once, not over and over."""
    tower = Tower()
    one, two = keyed(1, 2)
    early = one._replace(expires_us=1)
    assert tower.admit(early, two) == []
    pending = tower.collect()
    pending.settlement.kept = [early]
    tower.flight.settled(pending, ALL, tower.may)
    assert tower.admit(early, two) == [early, two]
    tower.flight.confirm([early, two])
    assert tower.settle()[0].done == [early, two]
    assert tower.admit(early) == []  # its next delivery is decided anew


def test_an_expired_event_of_a_lost_lane_is_forgotten():
    tower = Tower()
    over = make_record(1, key="k", expires_us=1)
    assert tower.admit(over) == []
    tower.flight.forget([over.lane])
    assert tower.settle()[0].expired == []
    assert tower.flight.is_empty


def test_an_event_that_a_handler_has_begun_does_not_expire():
    tower = Tower(counts_at_start=True)
    begun = make_record(1, key="k", expires_us=1, state="processing", attempts=1)
    assert tower.admit(begun) == []
    assert tower.suspects == [begun]


# T-B3
def test_what_cannot_be_read_is_not_parked_behind_a_barrier():
    tower = Tower()
    (odd,) = keyed(6, barrier=5)
    odd = odd._replace(state="unreadable", last_error="topic is missing")
    assert tower.admit(odd) == []
    settlement, _ = tower.settle()
    assert (settlement.parked, [burial.record for burial in settlement.dead]) == ([], [odd])


@pytest.mark.promise("R3", "B5")
def test_a_busy_key_is_not_admitted_again():
    tower = Tower()
    one, two = keyed(1, 2)
    tower.admit(one)
    assert tower.admit(one, two) == []
    tower.flight.confirm([one])
    assert tower.admit(two) == []  # confirmed, but not settled: still busy
    tower.settle()
    assert tower.admit(two) == [two]


@pytest.mark.promise("B3")
def test_followers_of_a_blocked_key_are_set_aside_to_be_parked():
    tower = Tower()
    head, *followers = keyed(5, 6, 7, barrier=5)
    assert tower.admit(head, *followers) == [head]
    assert tower.flight.wants_settle
    settlement, _ = tower.settle()
    assert settlement.parked == followers
    assert settlement.done == []


@pytest.mark.promise("B2", "B3")
def test_without_its_head_a_blocked_key_sends_nothing():
    tower = Tower()
    followers = keyed(6, 7, barrier=5)
    assert tower.admit(*followers) == []
    assert not tower.flight.is_empty
    settlement, _ = tower.settle()
    assert settlement.parked == followers
    assert tower.flight.is_empty


def test_events_up_to_the_barrier_may_go():
    tower = Tower()
    late, head = keyed(3, 5, barrier=5)  # 3 was committed after 5 had failed
    assert tower.admit(late, head) == [late, head]


# -- outcomes -----------------------------------------------------------------------------------
@pytest.mark.req("S1.3")
def test_only_the_confirmed_are_done():
    tower = Tower()
    one, two = make_record(1, key="a"), make_record(2, key="b")
    tower.admit(one, two)
    tower.flight.confirm([one])
    assert tower.answers == 1
    settlement, _ = tower.settle()
    assert settlement.done == [one]
    assert settlement.leases == {one.lane: 1}
    assert tower.flight.busy_keys() == [two.key_hash]
    assert tower.flight.waiting_for_outcomes == 1


@pytest.mark.promise("B5")
@by_either_call
def test_what_was_confirmed_behind_a_failure_is_not_settled(how):
    tower = Tower()
    one, two, three = keyed(1, 2, 3)
    tower.admit(one, two, three)
    tower.tell_confirmed(one, how)
    tower.flight.report(two, FAILED)
    tower.tell_confirmed(three, how)
    settlement, fenced = tower.settle()
    assert settlement.done == [one]
    assert without_entries(settlement.failed) == [FailedOutcome(two, 1, 7.0, "boom")]
    assert fenced == 0
    assert tower.flight.repeats == 1  # three will be seen again
    assert tower.flight.is_empty


@pytest.mark.promise("B5")
@pytest.mark.parametrize("order", [(3, 2, 1), (2, 3, 1), (3, 1, 2), (1, 3, 2)])
@by_either_call
def test_reports_out_of_order_wait_for_their_turn(order, how):
    tower = Tower()
    records = {record.seq: record for record in keyed(1, 2, 3)}
    tower.admit(*records.values())
    for seq in order[:-1]:
        tower.tell_confirmed(records[seq], how)
    early, _ = tower.settle()
    prefix = [] if order[-1] == 1 else [1]
    assert seqs(early.done) == prefix
    tower.tell_confirmed(records[order[-1]], how)
    late, _ = tower.settle()
    assert seqs(late.done) == [n for n in (1, 2, 3) if n not in prefix]
    assert tower.flight.is_empty


@pytest.mark.promise("B5")
@by_either_call
def test_a_failure_that_is_told_last_still_holds_back_what_follows(how):
    tower = Tower()
    one, two, three = keyed(1, 2, 3)
    tower.admit(one, two, three)
    tower.tell_confirmed(three, how)
    tower.tell_confirmed(two, how)
    assert not tower.flight.wants_settle
    tower.flight.report(one, FAILED)
    settlement, _ = tower.settle()
    assert settlement.done == []
    assert without_entries(settlement.failed) == [FailedOutcome(one, 1, 7.0, "boom")]
    assert tower.flight.repeats == 2


@pytest.mark.promise("B5")
def test_only_the_first_failure_of_a_run_is_judged():
    tower = Tower()
    one, two = keyed(1, 2)
    tower.admit(one, two)
    tower.flight.report(one, FAILED)
    assert not tower.flight.wants_settle  # two may still be on its way
    tower.flight.report(two, FAILED)
    settlement, _ = tower.settle()
    assert without_entries(settlement.failed) == [FailedOutcome(one, 1, 7.0, "boom")]
    assert tower.attempts == [(1, 1)]


@by_either_call
def test_the_first_report_of_a_record_counts(how):
    tower = Tower()
    one, two = keyed(1, 2)
    tower.admit(one, two)
    tower.flight.report(two, FAILED)
    tower.tell_confirmed(two, how)
    tower.tell_confirmed(one, how)
    tower.flight.report(one, FAILED)
    settlement, _ = tower.settle()
    assert settlement.done == [one]
    assert without_entries(settlement.failed) == [FailedOutcome(two, 1, 7.0, "boom")]


def test_reports_of_what_is_not_under_way_change_nothing():
    tower = Tower()
    stranger, (one, two) = make_record(9, key="z"), keyed(1, 2)
    tower.admit(one)
    tower.flight.report(stranger, CONFIRMED)
    tower.flight.report(two, CONFIRMED)
    assert not tower.flight.wants_settle
    assert tower.flight.waiting_for_outcomes == 1


@pytest.mark.promise("P2")
def test_unsent_followers_are_simply_read_again():
    tower = Tower()
    one, two, three = keyed(1, 2, 3)
    tower.admit(one, two, three)
    tower.flight.report(one, CONFIRMED)
    tower.flight.report(two, UNSENT)
    tower.flight.report(three, UNSENT)
    settlement, _ = tower.settle()
    assert settlement.done == [one]
    assert (settlement.failed, settlement.dead, settlement.returned) == ([], [], [])
    assert tower.attempts == []
    assert tower.flight.repeats == 0
    assert tower.flight.is_empty
    assert tower.admit(two, three) == [two, three]


@pytest.mark.promise("P2")
@pytest.mark.req("S1.4")
def test_an_outage_is_called_out_and_writes_nothing():
    tower = Tower()
    one, two = keyed(1, 2)
    tower.admit(one, two)
    tower.flight.report(one, OUTAGE)
    tower.flight.report(two, UNSENT)
    settlement, _ = tower.settle()
    assert tower.outages == ["away"]
    assert tower.answers == 0
    assert not settlement
    assert tower.flight.is_empty


@pytest.mark.parametrize(
    ("verdict", "answers"),
    [(Verdict.CONFIRMED, 1), (Verdict.FAILED, 1), (Verdict.REJECTED, 1),
     (Verdict.MISCONFIGURED, 1), (Verdict.UNKNOWN, 0), (Verdict.OUTAGE, 0), (Verdict.UNSENT, 0)],
)  # fmt: skip
def test_which_outcomes_prove_that_the_destination_is_there(verdict, answers):
    tower = Tower()
    (one,) = keyed(1)
    tower.admit(one)
    tower.flight.report(one, Outcome(verdict))
    assert tower.answers == answers
    assert tower.stirs == 1


@pytest.mark.promise("G7")
@pytest.mark.req("S2.4")
def test_the_last_attempt_buries_and_a_rejected_one_at_once():
    tower = Tower()
    tired, bad = make_record(1, key="a", attempts=4), make_record(2, key="b")
    tower.admit(tired, bad)
    tower.flight.report(tired, FAILED)
    tower.flight.report(bad, Outcome(Verdict.REJECTED, "never"))
    settlement, _ = tower.settle()
    assert without_entries(settlement.dead) == [
        DeadOutcome(tired, 5, "boom"),
        DeadOutcome(bad, 1, "never"),
    ]


def test_alarms_are_part_of_their_settle():
    tower = Tower(on_exhausted="block")
    (one,) = keyed(1, attempts=4)
    tower.admit(one)
    tower.flight.report(one, FAILED)
    pending = tower.collect()
    assert pending.alarms == [(one, "boom")]
    assert without_entries(pending.settlement.failed) == [FailedOutcome(one, 5, 7.0, "boom")]
    assert tower.collect().alarms == []


# -- busy until settled -------------------------------------------------------------------------
@pytest.mark.promise("R3", "B5")
def test_a_key_stays_busy_until_its_settle_is_committed():
    tower = Tower()
    (one,) = keyed(1)
    tower.admit(one)
    tower.flight.confirm([one])
    assert tower.flight.busy_keys() == [one.key_hash]
    pending = tower.collect()
    assert tower.flight.busy_keys() == [one.key_hash]
    assert tower.flight.busy_lanes() == {one.lane}
    assert not tower.flight.is_empty
    assert tower.flight.settled(pending, ALL, tower.may) == 0
    assert tower.flight.busy_keys() == []
    assert tower.flight.is_empty


@pytest.mark.promise("P1")
def test_a_run_that_is_partly_confirmed_is_settled_partly_and_stays_busy():
    tower = Tower()
    one, two = keyed(1, 2)
    tower.admit(one, two)
    tower.flight.confirm([one])
    settlement, _ = tower.settle()
    assert settlement.done == [one]
    assert tower.flight.busy_keys() == [one.key_hash]
    tower.flight.confirm([two])
    settlement, _ = tower.settle()
    assert settlement.done == [two]
    assert tower.flight.is_empty


@pytest.mark.promise("L6")
def test_hung_lanes_are_those_with_old_work_that_has_no_outcome():
    tower = Tower()
    old, young, over = (make_record(n, key=k) for n, k in ((1, "a"), (2, "b"), (3, "c")))
    tower.admit(old, over, now=10.0)
    tower.admit(young, now=20.0)
    tower.flight.confirm([over])
    assert tower.flight.hung_lanes(10.0) == set()
    assert tower.flight.hung_lanes(15.0) == {old.lane}
    assert tower.flight.hung_lanes(25.0) == {old.lane, young.lane}


# -- the end of a publish call ------------------------------------------------------------------
@pytest.mark.promise("P3")
def test_what_was_not_reported_is_unknown_and_the_first_becomes_a_suspect():
    tower = Tower()
    one, two, three = keyed(1, 2, 3)
    runs = tower.fly(one, two, three)
    tower.flight.confirm([one])
    tower.flight.ended(runs, "cut")
    assert tower.suspects == [two]
    assert tower.flight.waiting_for_outcomes == 1
    settlement, _ = tower.settle()
    assert settlement.done == [one]
    assert without_entries(settlement.failed) == []
    assert tower.flight.busy_keys() == [one.key_hash]  # nothing passes the suspect


@pytest.mark.promise("P3")
@by_either_call
def test_the_end_of_a_call_with_reports_that_came_early(how):
    tower = Tower()
    one, two, three = keyed(1, 2, 3)
    runs = tower.fly(one, two, three)
    tower.tell_confirmed(two, how)
    tower.flight.ended(runs, "cut")
    assert tower.suspects == [one]
    assert tower.flight.repeats == 1
    assert tower.flight.waiting_for_outcomes == 1


def test_the_end_of_a_call_whose_records_all_have_outcomes_changes_nothing():
    tower = Tower()
    (one,) = keyed(1)
    runs = tower.fly(one)
    tower.flight.confirm([one])
    tower.flight.ended(runs, "cut")
    settlement, _ = tower.settle()
    assert settlement.done == [one]
    tower.flight.ended(runs, "cut")
    assert tower.suspects == []
    assert tower.flight.is_empty


def test_the_end_of_an_old_call_does_not_touch_a_newer_run_of_the_key():
    tower = Tower()
    one, two = keyed(1, 2)
    old = tower.fly(one)
    tower.flight.confirm([one])
    tower.settle()
    tower.admit(two)
    tower.flight.ended(old, "cut")
    assert tower.suspects == []
    tower.flight.confirm([two])
    settlement, _ = tower.settle()
    assert settlement.done == [two]
