"""A flight under test: the real one, and what it called out."""

from __future__ import annotations

from postroom.broker import CONFIRMED, Outcome, Verdict
from postroom.engine.failure_policy import FailurePolicy
from postroom.engine.relay.in_flight import InFlight
from postroom.retry import Constant, RetryPolicy
from postroom.testing.broker_tools import make_record

FAILED = Outcome(Verdict.FAILED, "boom")
UNKNOWN = Outcome(Verdict.UNKNOWN, "cut")
OUTAGE = Outcome(Verdict.OUTAGE, "away")
ALL = frozenset(range(64))


class Tower:
    """A flight, and what it called out."""

    def __init__(self, *, counts_at_start=False, **policy):
        self.suspects, self.outages, self.attempts = [], [], []
        self.stirs = self.answers = 0
        self.lost = set()
        self.decide = FailurePolicy(
            RetryPolicy(**{"backoff": Constant(7.0), **policy}),
            counts_at_start=counts_at_start,
            suspect_limit=3,
            misconfigured_seconds=33.0,
        )
        self.flight = InFlight(
            self.decide,
            on_stir=self._stir,
            on_suspect=self.suspects.append,
            on_outage=self.outages.append,
            on_answer=self._answer,
            on_attempt=lambda record, outcome, n: self.attempts.append((record.seq, n)),
        )

    def _stir(self):
        self.stirs += 1

    def _answer(self):
        self.answers += 1

    def may(self, lane):
        return lane not in self.lost

    def tell_confirmed(self, record, how):
        """Report a confirm in one of the two ways that a destination has."""
        if how == "report":
            self.flight.report(record, CONFIRMED)
        else:
            self.flight.confirm([record])

    def admit(self, *records, now=0.0):
        return self.flight.admit(records, {r.lane for r in records if self.may(r.lane)}, now)

    def collect(self):
        return self.flight.collect(
            "main", "anna", 15.0, lambda lanes: {n: 1 for n in lanes if self.may(n)}, keep_done=True
        )

    def settle(self, lanes=ALL):
        """Collect and commit; returns the settlement and the number of outcomes thrown away."""
        pending = self.collect()
        return pending.settlement, self.flight.settled(pending, lanes, self.may)

    def fly(self, *records):
        """Admit and return the runs as their publish call knows them."""
        return self.flight.runs_of(self.admit(*records))


def keyed(*seqs, key="k", **facts):
    return [make_record(n, key=key, **facts) for n in seqs]


def seqs(records):
    return [record.seq for record in records]


def without_entries(outcomes):
    """Return failed or dead outcomes without their entries in the history, which have a time."""
    return [outcome._replace(entry=None) for outcome in outcomes]
