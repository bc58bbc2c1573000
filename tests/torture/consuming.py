"""A consumer under torture: the real one, with a source that keeps a history of what it hands over.

A message is acknowledged after its effect has been committed. A doomed consumer dies in between.
"""

from __future__ import annotations

import asyncio
import logging

from postroom import Consumer
from postroom.model.envelope import ID
from postroom.observer import Attempt, BreakerChanged, StoreTrouble
from postroom.registry import load_source
from tests.torture.doom import Doom, explain_on_signal, plant_mutant
from tests.torture.history import History
from tests.torture.worlds import QUICK

NAME = "torture"


class Watched:
    """A source that notes what was received and what was acknowledged."""

    def __init__(self, source, history, doom):
        self._source, self._history, self._doom = source, history, doom

    @property
    def capabilities(self):
        return self._source.capabilities

    @property
    def connection(self):
        return self._source.connection

    @property
    def name(self):
        return self._source.name

    async def open(self):
        await self._source.open()

    async def receive(self):
        found = await self._source.receive()
        self._history.note("got", ids=[one.message.headers.get(ID) for one in found])
        return [_Delivery(one, self._history, self._doom) for one in found]

    async def pause(self):
        await self._source.pause()

    async def close(self):
        await self._source.close()

    async def health(self):
        await self._source.health()


class _Delivery:
    def __init__(self, delivery, history, doom):
        self._delivery, self._history, self._doom = delivery, history, doom
        self.message = delivery.message

    @property
    def is_lost(self):
        return self._delivery.is_lost

    def ack(self):
        self._doom.strike(self._history)
        self._history.note("ack", id=self.message.headers.get(ID))
        self._delivery.ack()


class Recorder:
    def __init__(self, history):
        self.history = history

    def observe(self, fact):
        match fact:
            case Attempt():
                self.history.note("tried", id=fact.id, verdict=fact.verdict, error=fact.error[:200])
            case StoreTrouble():
                self.history.note("trouble", doing=fact.doing, error=fact.error[:200])
            case BreakerChanged():
                self.history.note("inbox breaker", state=fact.state)


def consume(source, store, path, *, name, lease, mode):
    logging.basicConfig(level=logging.INFO)
    plant_mutant()
    history, doom = History(path, name), Doom()
    from tests.torture.effects import handlers

    async def main():
        it = Consumer(
            Watched(load_source(source), history, doom), store, handlers, name=NAME,
            mode=mode, lease_seconds=lease, max_outage_seconds=2.0, misconfigured_seconds=1.0,
            retry=QUICK, observers=[Recorder(history)],
        )  # fmt: skip
        explain_on_signal()
        history.note("start")
        gracefully = await it.run()
        history.note("end", gracefully=gracefully)

    asyncio.run(main())
