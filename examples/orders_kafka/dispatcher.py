"""The dispatcher: a relay with the settings that the shop wants, and someone to tell it to."""

from __future__ import annotations

import asyncio
from collections import Counter

from postroom import Relay, RelaySettings
from postroom.observer import Attempt, BreakerChanged, Fact
from postroom.retry import Exponential, RetryPolicy

SETTINGS = RelaySettings(
    batch_size=100,
    max_batch_size=100,
    poll_seconds=1.0,
    retry=RetryPolicy(max_attempts=5, backoff=Exponential(base=0.5, maximum=60.0)),
    max_outage_seconds=2.0,  # for a program that somebody watches; the default is 30
)


class Journal:
    """Prints when Kafka goes and comes, and counts events that were not confirmed."""

    def __init__(self) -> None:
        self.went_away = asyncio.Event()
        self.verdicts: Counter[str] = Counter()

    def observe(self, fact: Fact) -> None:
        """Take a fact from the relay."""
        if isinstance(fact, BreakerChanged):
            if fact.state == "open":
                self.went_away.set()
                print(f"  relay: Kafka is away ({fact.error})")
            else:
                print("  relay: Kafka is back")
        elif isinstance(fact, Attempt):
            self.verdicts[fact.verdict] += 1


def dispatcher(store_url: str, broker_url: str, journal: Journal) -> Relay:
    """Make a dispatcher: `start()`, `stop()`, `is_running`."""
    return Relay(store_url, broker_url, SETTINGS, observers=[journal])


async def statistics(relay: Relay) -> str:
    """Return how many events there are in each state."""
    counts = (await relay.store.stats()).counts
    return ", ".join(f"{number} {state}" for state, number in sorted(counts.items()) if number)


async def is_well(relay: Relay) -> str:
    """Ask Kafka for a sign of life."""
    try:
        await relay.broker.health()
    except Exception as error:
        return f"no: {error}"
    return "yes"
