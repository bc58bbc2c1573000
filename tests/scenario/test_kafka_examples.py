"""The example programs that end in Kafka run with one command, and keep what they promise."""

from __future__ import annotations

import re

import pytest

from tests.servers.examples import run_example

pytestmark = [pytest.mark.slow, pytest.mark.server]


def play(name, *logs):
    """Run an example as `make example` does, with warnings as errors; returns its lines."""
    done = run_example(name, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    logged = {line.split(" ")[0] for line in done.stderr.splitlines()}
    assert logged <= {"breaker", "attempt", "dead-letter", *logs}, done.stderr  # what it plants
    return done.stdout.splitlines()


def outages(lines):
    """Return what the relay said of Kafka, each time that changed."""
    said = [line.split() for line in lines if line.startswith("  relay: Kafka is ")]
    return [words[3] for words in said]


def waiting(lines, beginning):
    """Return how many events were not done, by the line that begins so."""
    (line,) = [line for line in lines if line.startswith(beginning)]
    found = re.findall(r"(\d+) (pending|processing|failed|dead)", line.removeprefix(beginning))
    return sum(int(number) for number, _ in found)


@pytest.mark.req("S1.2", "S1.4", "S1.6", "S1.7", "S1.9", "S1.10")
def test_checkout():
    lines = play("checkout")
    told = outages(lines)
    assert len(told) >= 4
    assert told == ["unreachable", "back"] * (len(told) // 2)
    assert waiting(lines, "15 checkouts before Kafka was started: ") == 15
    assert "30 checkouts, 30 shipped: 30 done" in lines
    assert waiting(lines, "45 checkouts, 30 shipped: 30 done, ") == 15
    assert "60 checkouts, 60 shipped: 60 done" in lines
    # What was in flight when Kafka was killed may have arrived twice: the inbox has seen to it.
    assert lines[-2].startswith("60 orders, 60 shipments, ")
    assert lines[-1] == "every order was shipped once"


def test_django_shop():
    lines = play("django_shop", "Kafka")  # its consumer may start before the topic exists
    assert "30 orders; the consumer was killed" in lines
    assert "rolled back: a negative total" in lines
    assert "60 orders, 60 payments, paid twice: 0" in lines
    assert lines[-1] == "every order was paid once"


@pytest.mark.nightly
@pytest.mark.req("S4.2", "S4.3", "S4.4", "S4.6", "S4.9", "S4.10")
def test_orders_kafka():
    lines = play("orders_kafka")
    told = outages(lines)
    assert told == ["unreachable", "back"] * (len(told) // 2)
    assert told
    assert "the dispatcher is running: True; Kafka is healthy: yes" in lines
    assert "18 orders with Kafka: 54 done" in lines
    assert waiting(lines, "36 orders, the shop continues: 54 done, ") == 54
    assert [line for line in lines if line.startswith("Kafka is healthy: no: ")]
    assert "54 orders: 162 done" in lines
    # What was in flight when Kafka was killed may be there twice.
    (found,) = [line for line in lines if line.startswith("a reader of the topic found ")]
    assert found.startswith("a reader of the topic found 162 of 162 events, 0 orders out of order")
    assert lines[-1] == "every promise was kept"
