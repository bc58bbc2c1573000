"""Backoff and giving up."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroom.errors import ConfigError
from postroom.retry import Constant, Exponential, Linear, RetryPolicy


# -- backoff (S4.5) ---------------------------------------------------------------------------
@pytest.mark.req("S4.5")
def test_exponential_with_full_jitter():
    low = Exponential(base=0.5, maximum=20, random=lambda: 0.0)
    half = Exponential(base=0.5, maximum=20, random=lambda: 0.5)
    high = Exponential(base=0.5, maximum=20, random=lambda: 1.0)
    assert [low(n) for n in (1, 2, 7)] == [0, 0, 0]
    assert [half(n) for n in (1, 2, 3)] == [0.25, 0.5, 1.0]
    assert [high(n) for n in (1, 2, 3, 4, 5, 6, 7, 8)] == [0.5, 1, 2, 4, 8, 16, 20, 20]
    assert high(10_000) == 20


@pytest.mark.req("S4.5")
def test_linear_with_jitter():
    low = Linear(base=2, maximum=7, random=lambda: 0.0)
    high = Linear(base=2, maximum=7, random=lambda: 1.0)
    assert [low(n) for n in (1, 2, 3, 4)] == [1, 2, 3, 3.5]
    assert [high(n) for n in (1, 2, 3, 4)] == [2, 4, 6, 7]


@pytest.mark.req("S4.5")
def test_constant_timedeltas_and_a_function_of_your_own():
    assert [Constant(3)(n) for n in (1, 9)] == [3, 3]
    assert Constant(timedelta(minutes=1))(1) == 60
    minutes = Exponential(timedelta(minutes=1), timedelta(hours=1), random=lambda: 1.0)
    assert [minutes(1), minutes(2), minutes(9)] == [60, 120, 3600]
    assert RetryPolicy(backoff=lambda n: timedelta(seconds=n * n)).delay(3) == 9


def test_the_defaults_stay_within_their_bounds():
    for backoff in (Exponential(), Linear()):
        waits = [backoff(n) for n in range(1, 200) for _ in range(5)]
        assert all(0 <= wait <= 300 for wait in waits)
    assert all(0.5 <= Linear()(1) <= 1 for _ in range(100))


@pytest.mark.parametrize(
    ("returned", "delay"),
    [
        (-5, 0.0),
        (float("nan"), 31_622_400.0),
        (float("inf"), 31_622_400.0),
        (timedelta(days=9999), 31_622_400.0),
        (0, 0.0),
        (7, 7.0),
    ],
)
def test_whatever_a_function_returns_a_delay_is_from_nothing_to_a_year(returned, delay):
    assert RetryPolicy(backoff=lambda n: returned).delay(1) == delay


@pytest.mark.parametrize(
    "call",
    [
        lambda: Exponential(base=0),
        lambda: Exponential(base=-1),
        lambda: Exponential(base=5, maximum=1),
        lambda: Exponential(base=float("nan")),
        lambda: Exponential(maximum=float("inf")),
        lambda: Linear(base=0),
        lambda: Linear(maximum=float("nan")),
        lambda: Constant(-1),
        lambda: Constant(float("nan")),
        lambda: Constant(float("inf")),
        lambda: RetryPolicy(backoff=5),
    ],
)
def test_a_backoff_that_makes_no_sense(call):
    with pytest.raises(ConfigError, match="backoff"):
        call()


# -- giving up (S2.4, S4.3, B6) ---------------------------------------------------------------
@pytest.mark.req("S2.4", "S4.3")
@pytest.mark.promise("B6")
def test_five_attempts_and_then_a_dead_letter():
    policy = RetryPolicy()
    assert [policy.gives_up(n, strict=False) for n in (1, 4, 5, 6)] == [False, False, True, True]


@pytest.mark.promise("B6")
def test_blocking_and_strict_events_are_never_given_up():
    assert not RetryPolicy(on_exhausted="block").gives_up(99, strict=False)
    assert not RetryPolicy().gives_up(99, strict=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "max_attempts must be 1 or more, not 0"),
        ({"on_exhausted": "drop"}, "on_exhausted must be 'bury' or 'block', not 'drop'"),
    ],
)
def test_a_policy_that_makes_no_sense(options, message):
    with pytest.raises(ConfigError, match=message):
        RetryPolicy(**options)


def test_a_backoff_that_raises_does_not_stop_the_relay(caplog):
    def broken(attempt):
        raise RuntimeError("no idea")

    assert 0 <= RetryPolicy(backoff=broken).delay(1) <= 0.5
    assert "the backoff function failed" in caplog.text
