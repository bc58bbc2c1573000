"""The circuit breaker: one story per outage, longer and longer pauses, one try per worker."""

from __future__ import annotations

import pytest

from postroom.engine.breaker import Breaker


def breaker(jitter=1.0, first=1.0, longest=8.0):
    return Breaker(first, longest, lambda: jitter)


def test_closed_lets_everything_go():
    made = breaker()
    assert made.is_closed
    assert made.room(100, 0.0, 0) == 100
    assert made.answered() is False
    assert made.is_closed


@pytest.mark.req("S1.4")
def test_an_outage_opens_it_once():
    made = breaker()
    assert made.outage("refused", 10.0) is True
    assert made.outage("refused, and again by the next event of the batch", 10.5) is False
    assert made.state == "open"
    assert made.retry_at == 11.0
    assert made.error == "refused, and again by the next event of the batch"
    assert made.room(100, 10.9, 0) == 0


def test_each_worker_may_try_one_event():
    made = breaker()
    made.outage("refused", 10.0)
    assert made.room(100, 11.0, 0) == 1
    assert made.state == "trying"
    assert made.room(100, 11.0, 0) == 0
    assert made.room(100, 11.0, 1) == 1
    assert made.room(100, 11.1, 1) == 0


def test_a_worker_without_an_event_to_try_with_may_try_its_next():
    made = breaker()
    made.outage("refused", 10.0)
    assert made.room(100, 11.0, 0) == 1
    made.untried(0)
    made.untried(5)
    assert made.room(100, 11.0, 0) == 1
    assert made.room(100, 11.0, 0) == 0


def test_a_try_that_never_comes_back_is_not_the_last():
    made = breaker(longest=8.0)
    made.outage("refused", 10.0)
    assert made.room(100, 11.0, 0) == 1
    assert made.room(100, 18.9, 0) == 0
    assert made.room(100, 19.0, 0) == 1


@pytest.mark.promise("F2")
def test_pauses_grow_up_to_the_longest():
    made, now, pauses = breaker(first=1.0, longest=5.0), 0.0, []
    made.outage("refused", now)
    for _ in range(5):
        pauses.append(made.retry_at - now)
        now = made.retry_at
        assert made.room(1, now, 0) == 1
        assert made.outage("still refused", now) is False  # the same outage: no news
        assert made.state == "open"
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_hundreds_of_trips_do_not_overflow():
    made = breaker(first=1.0, longest=30.0)
    for _ in range(5_000):
        made.failed_again(0.0)
    assert made.retry_at == 30.0


@pytest.mark.parametrize(("jitter", "pause"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_jitter_takes_away_half_at_most(jitter, pause):
    made = breaker(jitter)
    made.outage("refused", 0.0)
    assert made.retry_at == pause


def test_the_real_jitter_stays_within_its_bounds():
    for _ in range(200):
        made = Breaker(1.0, 8.0)
        made.outage("refused", 0.0)
        assert 0.5 <= made.retry_at <= 1.0


@pytest.mark.parametrize("tried", [False, True])
def test_any_answer_closes_it_and_the_next_outage_begins_anew(tried):
    made = breaker(first=1.0)
    made.outage("refused", 0.0)
    made.failed_again(0.0)
    made.failed_again(0.0)
    if tried:
        assert made.room(1, 10.0, 0) == 1
    assert made.answered() is True
    assert made.is_closed
    assert made.error == ""
    assert made.room(100, 0.0, 0) == 100
    assert made.outage("refused anew", 20.0) is True
    assert made.retry_at == 21.0
    assert made.room(1, 21.0, 0) == 1  # who tried in the last outage may try in this one
