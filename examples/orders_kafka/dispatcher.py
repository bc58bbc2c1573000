"""The dispatcher: a relay with the settings of the shop, and an observer."""

from __future__ import annotations

import asyncio
from collections import Counter

from postroom import Exponential, Relay, RelaySettings, RetryPolicy
from postroom.observer import Attempt, BreakerChanged, Fact

SETTINGS = RelaySettings(
    batch_size=100,
    max_batch_size=100,
    poll_seconds=1.0,
    retry=RetryPolicy(max_attempts=5, backoff=Exponential(base=0.5, maximum=60.0)),
    max_outage_seconds=2.0,  # short, for a demonstration; the default is 30
)


class Journal:
    """Prints when Kafka becomes unreachable and is back; counts events that were not confirmed."""

    def __init__(self) -> None:
        self.outage = asyncio.Event()
        self.verdicts: Counter[str] = Counter()

    def observe(self, fact: Fact) -> None:
        """Receive a fact from the relay."""
        if isinstance(fact, BreakerChanged):
            if fact.state == "open":
                self.outage.set()
                print(f"  relay: Kafka is unreachable ({fact.error})")
            else:
                print("  relay: Kafka is back")
        elif isinstance(fact, Attempt):
            self.verdicts[fact.verdict] += 1


def dispatcher(store_url: str, broker_url: str, journal: Journal) -> Relay:
    """Return a dispatcher with `start()`, `stop()` and `is_running`."""
    return Relay(store_url, broker_url, SETTINGS, observers=[journal])


async def statistics(relay: Relay) -> str:
    """Return the number of events in each state."""
    counts = (await relay.store.stats()).counts
    return ", ".join(f"{number} {state}" for state, number in sorted(counts.items()) if number)


async def is_healthy(relay: Relay) -> str:
    """Check whether Kafka answers."""
    try:
        await relay.broker.health()
    except Exception as error:
        return f"no: {error}"
    return "yes"
