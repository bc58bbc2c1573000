"""What a failed event deserves: every verdict, alone and in a batch, strict or not, both policies."""

from __future__ import annotations

import itertools

import pytest

from postroom.broker import CONFIRMED, UNSENT, Outcome, Verdict
from postroom.engine.failure_policy import Action, Decision, FailurePolicy
from postroom.retry import Constant, RetryPolicy
from postroom.testing.broker_tools import make_record

BACKOFF = 7.0
MISCONFIGURED = 33.0
LATER, BURY, ALONE, BACK = (
    Action.RETRY,
    Action.BURY,
    Action.ISOLATE,
    Action.RELEASE,
)


def judge(on_exhausted="bury", *, counts_at_start=False, backoff=None, suspect_limit=3):
    return FailurePolicy(
        RetryPolicy(
            max_attempts=5, backoff=backoff or Constant(BACKOFF), on_exhausted=on_exhausted
        ),
        counts_at_start=counts_at_start,
        suspect_limit=suspect_limit,
        misconfigured_seconds=MISCONFIGURED,
    )


def record(attempts=0, *, strict=False, seq=1):
    return make_record(seq, key="k", attempts=attempts, kseq=12 if strict else None)


EVERY_CIRCUMSTANCE = list(
    itertools.product((False, True), (False, True), ("bury", "block"), (False, True), (0, 4))
)


# -- what spends nothing ------------------------------------------------------------------------
@pytest.mark.promise("P2")
@pytest.mark.req("S1.4")
@pytest.mark.parametrize(("alone", "strict", "policy", "at_start", "attempts"), EVERY_CIRCUMSTANCE)
@pytest.mark.parametrize("verdict", [Verdict.UNSENT, Verdict.OUTAGE])
def test_unsent_and_outage_spend_nothing_whatever_the_circumstances(
    verdict, alone, strict, policy, at_start, attempts
):
    found = judge(policy, counts_at_start=at_start).decide(
        record(attempts, strict=strict), Outcome(verdict, "away", 99.0), alone=alone
    )
    assert found == Decision(BACK, attempts, 0.0, "away", alarm=False)


@pytest.mark.promise("P2", "F2")
def test_an_event_that_is_never_sent_is_not_tried_without_a_pause():  # E-4
    decide = judge()
    found = [decide.decide(record(2), Outcome(Verdict.UNSENT), alone=False) for _ in range(40)]
    assert [(f.action, f.delay) for f in found[:6]] == [
        (BACK, 0.0), (BACK, 0.0), (LATER, 0.1), (LATER, 0.2), (LATER, 0.4), (LATER, 0.8),
    ]  # fmt: skip
    assert found[-1].delay == 30.0
    assert {f.attempts for f in found} == {2}
    assert all(f.alarm and f.error for f in found[2:])
    decide.decide(record(2), Outcome(Verdict.MISCONFIGURED, "no topic"), alone=False)
    again = decide.decide(record(2), Outcome(Verdict.UNSENT), alone=False)
    assert again.action is BACK


@pytest.mark.promise("P2")
@pytest.mark.parametrize(("alone", "strict", "policy", "at_start", "attempts"), EVERY_CIRCUMSTANCE)
def test_a_wrong_configuration_waits_and_alarms_and_spends_nothing(
    alone, strict, policy, at_start, attempts
):
    found = judge(policy, counts_at_start=at_start).decide(
        record(attempts, strict=strict), Outcome(Verdict.MISCONFIGURED, "no topic"), alone=alone
    )
    assert found == Decision(LATER, attempts, MISCONFIGURED, "no topic", alarm=True)


# -- failed -------------------------------------------------------------------------------------
@pytest.mark.req("S2.4", "S4.3")
@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_a_failure_is_an_attempt_and_the_fifth_is_the_last(alone, at_start):
    found = [
        judge(counts_at_start=at_start).decide(
            record(n), Outcome(Verdict.FAILED, "boom"), alone=alone
        )
        for n in range(5)
    ]
    assert found == [
        Decision(LATER, 1, BACKOFF, "boom"),
        Decision(LATER, 2, BACKOFF, "boom"),
        Decision(LATER, 3, BACKOFF, "boom"),
        Decision(LATER, 4, BACKOFF, "boom"),
        Decision(BURY, 5, 0.0, "boom"),
    ]


@pytest.mark.promise("B6")
@pytest.mark.parametrize(("policy", "strict"), [("block", False), ("block", True), ("bury", True)])
def test_who_may_not_be_buried_is_tried_for_ever_with_an_alarm(policy, strict):
    found = [
        judge(policy).decide(record(n, strict=strict), Outcome(Verdict.FAILED, "boom"), alone=False)
        for n in (3, 4, 5, 100)
    ]
    assert found == [
        Decision(LATER, 4, BACKOFF, "boom", alarm=False),
        Decision(LATER, 5, BACKOFF, "boom", alarm=True),
        Decision(LATER, 6, BACKOFF, "boom", alarm=True),
        Decision(LATER, 101, BACKOFF, "boom", alarm=True),
    ]


@pytest.mark.req("S4.5")
def test_the_backoff_is_asked_for_the_number_of_the_attempt_that_failed():
    asked = []

    def backoff(attempt):
        asked.append(attempt)
        return attempt * 10

    made = judge(backoff=backoff)
    delays = [made.decide(record(n), Outcome(Verdict.FAILED), alone=False).delay for n in (0, 1, 2)]
    assert delays == [10, 20, 30]
    assert asked == [1, 2, 3]


@pytest.mark.parametrize("after", [0.0, 0.25, 120.0])
def test_the_destination_may_say_when_it_wants_the_next_attempt(after):
    found = judge().decide(record(), Outcome(Verdict.FAILED, "busy", after), alone=False)
    assert found == Decision(LATER, 1, after, "busy")


def test_a_wish_for_later_does_not_save_an_exhausted_event():
    found = judge().decide(record(4), Outcome(Verdict.FAILED, "busy", 60.0), alone=False)
    assert found == Decision(BURY, 5, 0.0, "busy")


@pytest.mark.parametrize(
    ("wish", "delay"),
    [(-5.0, 0.0), (1e300, 31_622_400.0), (float("inf"), 31_622_400.0),
     (float("nan"), 31_622_400.0)],
)  # fmt: skip
def test_no_wish_is_longer_than_a_year_or_shorter_than_nothing(wish, delay):
    found = judge().decide(record(), Outcome(Verdict.FAILED, "busy", wish), alone=False)
    assert found == Decision(LATER, 1, delay, "busy")


@pytest.mark.parametrize("returned", [None, "soon", ZeroDivisionError])
def test_a_backoff_of_the_users_own_that_breaks_does_not_take_the_key_with_it(returned):
    def backoff(attempt):
        if returned is ZeroDivisionError:
            raise ZeroDivisionError
        return returned

    found = judge(backoff=backoff).decide(record(), Outcome(Verdict.FAILED, "boom"), alone=False)
    assert (found.action, found.attempts, found.error) == (LATER, 1, "boom")
    assert 0 <= found.delay <= 300


# -- rejected -----------------------------------------------------------------------------------
@pytest.mark.req("S2.4")
@pytest.mark.parametrize("alone", [False, True])
def test_a_rejected_event_is_buried_at_its_first_attempt(alone):
    found = judge().decide(record(), Outcome(Verdict.REJECTED, "never"), alone=alone)
    assert found == Decision(BURY, 1, 0.0, "never")


@pytest.mark.promise("B6")
@pytest.mark.parametrize(("policy", "strict"), [("block", False), ("block", True), ("bury", True)])
def test_a_rejected_event_that_may_not_be_buried_blocks_with_an_alarm(policy, strict):
    found = judge(policy).decide(
        record(strict=strict), Outcome(Verdict.REJECTED, "never"), alone=False
    )
    assert found == Decision(LATER, 1, BACKOFF, "never", alarm=True)


# -- unknown ------------------------------------------------------------------------------------
@pytest.mark.promise("P3")
@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("attempts", [0, 4, 9])
def test_unknown_in_a_batch_is_never_charged(attempts, at_start):
    made = judge(counts_at_start=at_start)
    for _ in range(20):
        found = made.decide(record(attempts), Outcome(Verdict.UNKNOWN, "cut"), alone=False)
        assert found == Decision(ALONE, attempts, 0.0, "cut")


@pytest.mark.promise("P3")
def test_unknown_alone_is_charged_at_the_limit():
    made = judge(suspect_limit=3)
    found = [made.decide(record(), Outcome(Verdict.UNKNOWN, "cut"), alone=True) for _ in range(6)]
    assert [f.action for f in found] == [ALONE, ALONE, LATER, ALONE, ALONE, LATER]
    assert found[0] == Decision(ALONE, 0, 0.0, "cut")
    assert found[2] == Decision(LATER, 1, BACKOFF, "cut")


@pytest.mark.promise("P3", "G7")
def test_a_poison_that_kills_the_channel_each_time_is_found():
    made = judge(suspect_limit=3)
    for _ in range(2):
        made.decide(record(4), Outcome(Verdict.UNKNOWN, "cut"), alone=True)
    found = made.decide(record(4), Outcome(Verdict.UNKNOWN, "cut"), alone=True)
    assert found == Decision(BURY, 5, 0.0, "cut")


@pytest.mark.promise("P3")
def test_each_suspect_is_counted_by_itself_and_an_end_wipes_the_slate():
    made, cut = judge(suspect_limit=2), Outcome(Verdict.UNKNOWN, "cut")
    one, two = record(seq=1), record(seq=2)
    assert made.decide(one, cut, alone=True).action is ALONE
    assert made.decide(two, cut, alone=True).action is ALONE
    made.forget([one])
    made.forget([one])
    assert made.decide(one, cut, alone=True).action is ALONE
    assert made.decide(two, cut, alone=True).action is LATER


@pytest.mark.promise("H1")
def test_unknown_alone_of_what_was_counted_at_its_start_is_charged_at_once():
    made = judge(counts_at_start=True)
    found = made.decide(record(1), Outcome(Verdict.UNKNOWN, "commit lost"), alone=True)
    assert found == Decision(LATER, 2, BACKOFF, "commit lost")
    found = made.decide(record(4), Outcome(Verdict.UNKNOWN, "commit lost"), alone=True)
    assert found == Decision(BURY, 5, 0.0, "commit lost")


# -- orphans (H1) -------------------------------------------------------------------------------
@pytest.mark.promise("H1", "G7")
def test_what_a_dead_relay_began_is_tried_alone_until_its_attempts_are_spent():
    made = judge(counts_at_start=True)
    assert [made.orphan(record(n)).action for n in (1, 4)] == [ALONE, ALONE]
    found = made.orphan(record(5))
    assert (found.action, found.attempts) == (BURY, 5)
    assert found.error == (
        "started 5 times without finishing: the process died or lost its lease each time"
    )


@pytest.mark.promise("B6")
@pytest.mark.parametrize(("policy", "strict"), [("block", False), ("block", True), ("bury", True)])
def test_an_orphan_that_may_not_be_buried_is_tried_alone_for_ever(policy, strict):
    found = judge(policy, counts_at_start=True).orphan(record(50, strict=strict))
    assert found == Decision(ALONE, 50)


# -- the rest -----------------------------------------------------------------------------------
def test_there_is_nothing_to_judge_about_a_confirmed_event():
    with pytest.raises(ValueError, match="event-1 is confirmed"):
        judge().decide(record(), CONFIRMED, alone=False)


def test_every_verdict_has_a_decision():
    for verdict in set(Verdict) - {Verdict.CONFIRMED}:
        assert isinstance(judge().decide(record(), Outcome(verdict), alone=False), Decision)
    assert judge().decide(record(), UNSENT, alone=True).action is BACK
