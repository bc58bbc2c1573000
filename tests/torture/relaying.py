"""A relay under torture: the real one, with an observer that keeps a history."""

from __future__ import annotations

import asyncio
import logging

from postroom import Relay
from postroom.observer import BreakerChanged, Lanes, Settled, Trouble
from tests.torture.history import History


class Recorder:
    def __init__(self, history):
        self.history = history

    def observe(self, fact):
        match fact:
            case Lanes():
                self.history.note(fact.change, owner=fact.owner, lanes=list(fact.lanes))
            case Settled() if fact.fenced:
                self.history.note("fenced", events=fact.fenced)
            case Trouble():
                self.history.note("trouble", doing=fact.doing, error=fact.error[:200])
            case BreakerChanged():
                self.history.note("breaker", state=fact.state)


def relay(store, broker, path, *, name, lease):
    logging.basicConfig(level=logging.INFO)
    history = History(path, name)

    async def main():
        it = Relay(
            store, broker, lease_seconds=lease, poll_seconds=0.2, name=name, publish_seconds=6.0,
            max_outage_seconds=2.0,
            observers=[Recorder(history)],
        )  # fmt: skip
        history.note("start")
        in_peace = await it.run()
        history.note("end", in_peace=in_peace)

    asyncio.run(main())
