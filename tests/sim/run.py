"""Run one seed, or many."""

import asyncio
import contextlib
import random
import sys
import time

from postroom.engine.relay import key_run
from postroom.model.clock import host_microseconds
from tests.sim.chaos import Chaos
from tests.sim.checker import violations
from tests.sim.loop import SimLoop
from tests.sim.world import World


def simulate(seed, only=None):
    """Run one world; returns (violations, steps, world)."""
    rng = random.Random(seed)
    random.seed(seed)
    later = random.Random(f"operators {seed}")
    chaos = Chaos(rng, only, later)
    loop = SimLoop()
    settings = {
        "batch_size": rng.choice([1, 3, 10]),
        "max_batch_size": rng.choice([10, 50]),
        "keep_done_seconds": rng.choice([0.0, 1.0, 3600.0]),
        "groups": rng.choice([1, 2, 4]),
        "linger_seconds": rng.choice([0.0005, 0.005]),
        "max_outage_seconds": rng.choice([0.5, 3600.0]),
    }
    world = World(
        rng, chaos, loop, keys=rng.choice([1, 2, 5]), events=rng.choice([15, 40, 100]),
        relays=rng.choice([1, 1, 2, 3]), settings=settings,
        handlers=rng.random() < 0.4, strict=rng.random() < 0.3, streams=rng.choice([1, 1, 2]),
        sharing={"concurrency": rng.choice([1, 2, 10]), "batch": rng.choice([1, 4])},
        operators=later,
    )  # fmt: skip
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(world.run())
        return violations(world), loop.steps, world
    finally:
        key_run.host_microseconds = host_microseconds
        asyncio.set_event_loop(None)
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        with contextlib.suppress(Exception):
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.close()


def main(argv):
    first, seconds = int(argv[0]), float(argv[1])
    began, steps, seed = time.monotonic(), 0, first
    while time.monotonic() - began < seconds:
        found, n, world = simulate(seed)
        steps += n
        if found:
            print(f"seed {seed}: {dict(world.chaos.fired)}")
            for line in found:
                print("   ", line)
            return 1
        seed += 1
    took = time.monotonic() - began
    print(f"{seed - first} worlds, {steps} steps, {steps / took:.0f} steps/s, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
