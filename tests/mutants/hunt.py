"""Hunt one mutant: run what should notice it, in a process of its own."""

import os
import re
import subprocess
import sys
import time
from functools import cache

from tests.mutants.catalog import MUTANTS

_PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
_TESTS_FAILED = 1  # what pytest returns then; other codes tell of a run that broke
# The planted code itself raised what nobody meant: it no longer fits the code that it replaces.
_DOES_NOT_FIT = re.compile(
    r"^(?:.*[/\\])?tests[/\\]mutants[/\\](?!hunt|test_)\w+\.py:\d+: "
    r"(TypeError|AttributeError|NameError|UnboundLocalError|ImportError|KeyError)\b",
    re.MULTILINE,
)


class BrokenHuntError(Exception):
    """Nothing was learned about the mutant: it does not fit, or its test is red without it."""


def hunt(name, seconds=40.0):
    """Return who caught the mutant, or None if it survived."""
    mutant = MUTANTS[name]
    if mutant.sim != ():
        code, output = _run(sys.executable, "-m", "tests.mutants.hunt", name, str(seconds))
        if found := re.search(r"^caught: (.*)", output, re.MULTILINE):
            return found[1]
        if code != 0:
            raise BrokenHuntError(f"{name}: the simulation broke:\n{output[-3000:]}")
    for test in mutant.tests:
        if found := hunt_by_test(name, test):
            return found
    return None


def hunt_by_test(name, test):
    """Return the test that turned red because of the mutant, or None."""
    if not is_green(test):
        raise BrokenHuntError(f"{name}: {test} is red without the mutant")
    code, output = _run(*_PYTEST, "-p", "tests.mutants.plugin", test, mutant=name)
    if code == 0:
        return None
    found = re.search(r"^FAILED (\S+)", output, re.MULTILINE)
    if code != _TESTS_FAILED or not found or _DOES_NOT_FIT.search(output):
        raise BrokenHuntError(f"{name} broke the test itself:\n{output[-3000:]}")
    return found[1].split("/")[-1]


@cache
def is_green(test):
    """Say whether a test passes as the code is; tried twice, since a busy machine may be late."""
    return any(_run(*_PYTEST, test)[0] == 0 for _ in range(2))


def _run(*command, mutant=""):
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "POSTROOM_MUTANT": mutant},
        timeout=600, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def simulate_mutant(name, seconds):
    """In the mutant's own process: simulate until it is caught or the time is over."""
    mutant = MUTANTS[name]
    mutant.plant()
    from tests.sim.run import simulate

    began, seed = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        seed += 1
        # Every other world has only the faults that bring this bug out.
        found, _, _ = simulate(seed, mutant.sim if seed % 2 else None)
        if found:
            print(f"caught: simulation, seed {seed}: {found[0][:90]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(simulate_mutant(sys.argv[1], float(sys.argv[2])))
