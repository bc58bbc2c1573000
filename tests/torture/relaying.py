"""A relay under torture: the real one, with an observer that keeps a history.

A doomed relay dies when a publish call has ended and nothing of it is settled yet: with handlers,
between the commit of their effects and the settle.
"""

from __future__ import annotations

import asyncio
import logging

from postroom import Relay
from postroom.observer import (
    Attempt,
    BreakerChanged,
    ControlChanged,
    Delivered,
    LanesChanged,
    Sent,
    Settled,
    StoreTrouble,
)
from tests.torture.doom import Doom, explain_on_signal, plant_mutant, set_clock
from tests.torture.history import History
from tests.torture.operators import PauseWatch
from tests.torture.worlds import QUICK


class Recorder:
    def __init__(self, history, doom):
        self.history, self.doom = history, doom
        self.pauses = PauseWatch()

    def observe(self, fact):
        match fact:
            case Sent():
                if text := self.pauses.broken(fact.stream, fact.records, fact.seconds):
                    self.history.note("violation", text=text)
                self.doom.strike(self.history)
            case ControlChanged():
                self.pauses.changed(fact)
                what = "paused" if fact.paused else "resumed"
                self.history.note(what, kind=fact.kind, name=fact.name)
            case Delivered():
                self.history.note("delivered", ids=[record.id for record in fact.records])
            case Attempt():
                self.history.note("attempt", id=fact.id, verdict=fact.verdict)
            case LanesChanged():
                self.history.note(fact.change, owner=fact.owner, lanes=list(fact.lanes))
            case Settled() if fact.fenced:
                self.history.note("fenced", events=fact.fenced)
            case StoreTrouble():
                self.history.note("trouble", doing=fact.doing, error=fact.error[:200])
            case BreakerChanged():
                self.history.note("breaker", state=fact.state)


def relay(store, broker, path, *, name, lease, hours=0.0):
    logging.basicConfig(level=logging.INFO)
    plant_mutant()
    history, doom = History(path, name), Doom()
    if hours:
        set_clock(hours)

    async def main():
        it = Relay(
            store, broker, lease_seconds=lease, poll_seconds=0.2, name=name, publish_seconds=6.0,
            max_outage_seconds=2.0, misconfigured_seconds=1.0,
            retry=QUICK, observers=[Recorder(history, doom)], log=False,
        )  # fmt: skip
        explain_on_signal()
        history.note("start")
        gracefully = await it.run()
        history.note("end", gracefully=gracefully)

    asyncio.run(main())
