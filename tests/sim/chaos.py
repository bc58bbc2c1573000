"""The faults of a world, drawn from its seed."""

from collections import Counter


class Chaos:
    """Rates of faults, drawn once per seed: a quiet world finds other bugs than a wild one."""

    KINDS = {
        "crash": 0.004,
        "pause": 0.004,
        "store_conflict": 0.05,
        "store_lost": 0.05,
        "store_limbo": 0.03,
        "slow_store": 0.03,
        "locked_lane": 0.004,  # a stranger's transaction locks a lane, and stays
        "stuck_heartbeat": 0.05,  # heartbeats hang while reads work
        "refused": 0.05,  # the store refuses to write that this event failed
        "fail": 0.1,
        "unknown_arrived": 0.05,
        "unknown_missing": 0.05,
        "hasty": 0.5,  # what follows a failure is on its way already, and arrives
        "silent": 0.02,
        "slow_broker": 0.03,
        "cut": 0.02,  # the driver cancels its own future, as when a channel closes
        "misconfigured": 0.05,  # the topic is missing until the faults are over
        "join": 0.002,
        "leave": 0.002,
        "poison": 0.05,
        "outage": 0.002,
        "rollback": 0.15,
        "delay": 0.1,  # an event that is due later
        "clock": 0.002,  # the store's clock is set, back or forth
        "operator": 0.002,
        "killer": 0.02,
        "breaker": 0.03,
    }

    # Drawn apart, so that the worlds of old seeds stay as they were.
    LATER = {
        "controls": 0.01,  # an operator pauses or resumes a stream, a topic or a consumer
        "expiry": 0.2,  # an event with a time to be sent by
        "limits": 0.01,  # an operator limits a stream or a topic
    }

    # Only where it is asked for by its name.
    ASKED = {
        "set_back": 0.01,  # the store loses its last transactions, and gives their numbers again
    }

    def __init__(self, rng, only=None, later=None):
        self.rng, self._later = rng, later or rng
        chosen = [k for k in self.KINDS if rng.random() < 0.4] if only is None else list(only)
        if only is None and later is not None:
            chosen += [k for k in self.LATER if later.random() < 0.4]
        rates = {**self.KINDS, **self.LATER, **self.ASKED}
        self.rates = {k: rates[k] * self._of(k).choice([0.3, 1, 3]) for k in chosen}
        self.calm = False
        self.fired = Counter()

    def _of(self, kind):
        return self._later if kind in self.LATER else self.rng

    def hit(self, kind):
        if self.calm or kind not in self.rates or self._of(kind).random() >= self.rates[kind]:
            return False
        self.fired[kind] += 1
        return True
