"""What others send and write: messages past every outbox, and rows past the library.

Each has a mark and an end that the checker demands: `done`, `dead`, or `any` of the two. A message
whose sending has an unknown end is sent again, with the same mark; one that the broker may have
refused is `maybe`.
"""

from __future__ import annotations

import random
import time
from typing import NamedTuple

from tests.torture.history import History
from tests.torture.producing import Gate

PAUSE_SECONDS = 0.2


class Foreign(NamedTuple):
    """One message or row; `key` is empty where no order can be asked for."""

    number: int
    end: str
    key: str
    tries: int


class MaybeError(Exception):
    """It was refused, or the connection broke: it is there or not, and is not sent again."""


class Sender:
    """Sends by one of its ways at a time; a way is a function of the number and a random size."""

    def __init__(self, history, ways, seed):
        self.history, self.ways = history, ways
        self.rng = random.Random(seed)
        self._deck = []

    def send(self, number):
        self._deck = self._deck or self.rng.sample(list(self.ways), len(self.ways))
        name = self._deck.pop()
        way, end, key = self.ways[name](number)
        tries = 0
        while True:
            tries += 1
            try:
                way()
            except MaybeError as error:
                end = "maybe"
                self.history.note("refused", number=number, error=repr(error.__cause__)[:200])
            except Exception as error:
                self.history.note("failed", number=number, error=repr(error)[:200])
                time.sleep(PAUSE_SECONDS)
                continue
            self.history.note("foreign", number=number, end=end, key=key, tries=tries, name=name)
            return


def foreign(store, broker, path, *, name, seed, count, events, gate):
    """Send and write `count` of them, while producers write so many events each."""
    history, pace = History(path, name), Gate(gate)
    ways = _ways(store, broker)
    sender = Sender(history, ways, seed)
    for number in range(count):
        pace.wait(number * events // count)
        sender.send(number)


def _ways(store, broker):
    from tests.torture.foreign_rows import row_ways

    found = row_ways(store)
    if broker.startswith("kafka:"):
        from tests.torture.foreign_kafka import kafka_ways

        found |= kafka_ways(broker)
    elif broker.startswith("amqp"):
        from tests.torture.foreign_rabbitmq import rabbitmq_ways

        found |= rabbitmq_ways(broker)
    return found


def found_in(histories):
    """Return {number: Foreign} of all that was sent."""
    return {
        line["number"]: Foreign(line["number"], line["end"], line["key"], line["tries"])
        for line in histories
        if line["what"] == "foreign"
    }
