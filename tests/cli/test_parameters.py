"""Spans and instants as people write them, and who they are."""

from __future__ import annotations

import time

import pytest

from postroom.admin.values import instant, span
from postroom.cli.options import whoami
from postroom.model.clock import host_microseconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("15 min", 900), ("1.5h", 5_400), ("7d", 604_800), ("2w", 1_209_600), ("0", 0)],
)  # fmt: skip
def test_spans(text, seconds):
    assert span(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1y", "h", "1e3", "nan", "9999999d", "1h2m"])
def test_what_is_no_span(text):
    with pytest.raises(ValueError, match="a duration such as"):
        span(text)


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1970-01-02", 86_400_000_000),
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01T01:00:01+01:00", 1_000_000),
        ("1970-01-01 00:00:01", 1_000_000),
    ],
)
def test_instants(text, microseconds):
    assert instant(text) == microseconds


def test_a_span_is_so_long_ago():
    assert abs(instant("2h") - (host_microseconds() - 7_200_000_000)) < 60_000_000


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "12:00"])
def test_what_is_no_time(text):
    with pytest.raises(ValueError, match="a time such as"):
        instant(text)


def test_who_gives_an_order(monkeypatch):
    assert whoami("anna") == "anna"
    assert "@" in whoami(None)

    def nameless():
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert whoami(None).partition("@")[0].isdigit()


def test_a_time_without_a_zone_is_utc_wherever_the_machine_is(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert instant("1970-01-02") == 86_400_000_000
        assert instant("1970-01-01T00:00:01") == 1_000_000
    finally:
        monkeypatch.undo()
        time.tzset()
