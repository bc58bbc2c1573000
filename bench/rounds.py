"""Rounds that alternate between contestants, so that the machine's moods meet all of them."""

import resource
import sys
import time
from collections.abc import Callable
from typing import NamedTuple


class Contest(NamedTuple):
    """A contestant: `ready` makes its start, unmeasured; `work` returns how many it did.

    A float that `work` returns is the figure itself, measured by the contestant. One that does not
    do as many as are `expected` ends the benchmark: no figure is shown of work that was not done.
    """

    name: str
    work: Callable[[], int | float]
    ready: Callable[[], object] | None = None
    expected: int | None = None


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def alternate(contests, rounds):
    """Run all contestants in turn, so many times; returns name → the figure of each round."""
    figures = {contest.name: [] for contest in contests}
    for number in range(rounds):
        # Each round begins with another one: none follows the same neighbour every time.
        turn = number % len(contests)
        for contest in contests[turn:] + contests[:turn]:
            if contest.ready:
                contest.ready()
            began = time.perf_counter()
            did = contest.work()
            seconds = time.perf_counter() - began
            if isinstance(did, int):
                if contest.expected is not None and did != contest.expected:
                    raise RuntimeError(f"{contest.name}: did {did} of {contest.expected}")
                did /= seconds
            figures[contest.name].append(did)
        say(f"round {number + 1} of {rounds}, {peak_mb():,.0f} MB at most in this process")
    return figures


def peak_mb():
    """The most that this process has held, which is the relay's and the measuring's together."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
