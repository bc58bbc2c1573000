"""One call of `publish`: sent messages, their reports, and the outcomes key by key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from postroom.broker import UNSENT, Outcome, Reporter, Verdict
from postroom.brokers.kafka.verdicts import NEVER_LEFT, NO_REPORT, Loss
from postroom.record import Record

_BEHIND = Outcome(Verdict.UNKNOWN, "an earlier event of its key was not confirmed")


class PublishCall:
    """A batch in flight. Used on the event loop only.

    Within a topic a key stays in one partition, unless an event names another, and a producer
    without gaps keeps its order. When a key goes on in another place, that part waits until the
    part before it is confirmed.

    accounted   done as soon as each record is confirmed, lost, or not sent
    losses      unconfirmed records, and why
    stopped     the keys that lost a record: nothing more of them may be sent
    """

    def __init__(self, records: Sequence[Record], reporter: Reporter) -> None:
        self.records = records
        self.reporter = reporter
        self.accounted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.losses: dict[int, Loss] = {}
        self._open = set(range(len(records)))
        self.stopped: set[bytes] = set()
        self._next: dict[int, list[int]] = {}
        self._abandoned = False

    # -- out ----------------------------------------------------------------------------------
    def plan(
        self,
        place_of: Callable[[Record], str] | None,
        refusal: Callable[[Record], Outcome | None] | None,
    ) -> Sequence[int]:
        """Return what can be sent now, in order; report what cannot be sent at all.

        place_of    the topic, and the partition if it is given; None if each key has one place
        refusal     returns why a record must not be sent with the others; None if all may
        """
        if refusal is None and place_of is None:
            return range(len(self.records))
        now: list[int] = []
        stopped: set[bytes] = set()
        last: dict[bytes, tuple[str, list[int], bool]] = {}  # of each key: place, part, is first?
        for i, record in enumerate(self.records):
            key = record.key_hash
            if key in stopped:
                self._report(i, UNSENT)
                continue
            refused = None if refusal is None else refusal(record)
            if refused is not None:
                stopped.add(key)
                self._report(i, refused)
                continue
            place = "" if place_of is None else place_of(record)
            where, part, first = last.get(key, (place, [], True))
            if where != place:
                part, first = self._next.setdefault(part[-1], []), False
            part.append(i)
            last[key] = (place, part, first)
            if first:
                now.append(i)
        self._check()
        return now

    # -- in -----------------------------------------------------------------------------------
    def confirmed(self, indices: Sequence[int], receipts: Sequence[str] = ()) -> list[int]:
        """These are confirmed; returns what can be sent next.

        receipts    in the order of the indices, or none
        """
        if self._abandoned:
            return []
        self._open.difference_update(indices)
        self.reporter.confirm([self.records[i] for i in indices], receipts)
        following: list[int] = []
        if self._next:
            for i in indices:
                following += self._next.pop(i, ())
        self._check()
        return following

    def lose(self, i: int, loss: Loss) -> None:
        """This one was not confirmed, and neither are those behind it."""
        if i not in self._open or i in self.losses or self._abandoned:
            return
        self.stopped.add(self.records[i].key_hash)
        self.losses[i] = loss
        for behind in self._next.pop(i, ()):
            self.lose(behind, NEVER_LEFT)
        self._check()

    def close(self) -> None:
        """No more reports will come."""
        for i in sorted(self._open - self.losses.keys()):
            self.lose(i, NO_REPORT)

    def abandon(self) -> None:
        """The call was cancelled: report nothing from now on."""
        self._abandoned = True

    # -- the end ------------------------------------------------------------------------------
    def lost(self) -> list[tuple[Record, Loss]]:
        """The lost records, in order."""
        return [(self.records[i], self.losses[i]) for i in sorted(self.losses)]

    def decide(self, verdict: Callable[[Record, Loss], Outcome]) -> None:
        """Report the lost records: the first of each key by the verdict, the others behind it."""
        if self._abandoned:
            return
        judged: set[bytes] = set()
        for i in sorted(self.losses):
            record, loss = self.records[i], self.losses[i]
            if record.key_hash not in judged:
                judged.add(record.key_hash)
                self._report(i, verdict(record, loss))
            else:
                self._report(i, _BEHIND if loss.left else UNSENT)
        self.losses.clear()

    def _report(self, i: int, outcome: Outcome) -> None:
        self._open.discard(i)
        self.reporter.report(self.records[i], outcome)

    def _check(self) -> None:
        if len(self._open) == len(self.losses) and not self.accounted.done():
            self.accounted.set_result(None)
