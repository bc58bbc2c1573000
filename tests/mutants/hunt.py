"""Hunt one mutant: run what should notice it, in a process of its own."""

import os
import re
import subprocess
import sys
import time

from tests.mutants.catalog import MUTANTS


def hunt(name, seconds=40.0):
    """Return who caught the mutant, or None if it survived."""
    mutant = MUTANTS[name]
    if mutant.sim != ():
        found = _run([sys.executable, "-m", "tests.mutants.hunt", name, str(seconds)], name)
        if found is not None:
            return found
    for test in mutant.tests:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "tests.mutants.plugin", "-p",
                   "no:cacheprovider", "-p", "no:xdist", test]  # fmt: skip
        found = _run(command, name)
        if found is not None:
            return found
    return None


def _run(command, name):
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "POSTROOM_MUTANT": name},
        timeout=600, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return None
    if found := re.search(r"^FAILED (\S+)", done.stdout, re.MULTILINE):
        return found[1].split("/")[-1]
    if found := re.search(r"^caught: (.*)", done.stdout, re.MULTILINE):
        return found[1]
    raise RuntimeError(
        f"mutant {name} broke the test itself:\n{done.stdout[-3000:]}{done.stderr[-2000:]}"
    )


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
