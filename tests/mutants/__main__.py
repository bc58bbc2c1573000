"""`make mutants`: plant one bug at a time and show what catches it."""

import contextlib
import os
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

from tests.mutants.catalog import MUTANTS
from tests.mutants.hunt import BrokenHuntError, hunt
from tests.servers.plugin import Run
from tests.servers.process import data_root

# Each is started once: the bugs are on our side of the wire.
SERVERS = (
    "postgres", "postgres18", "mariadb", "mongo", "mongo_standalone", "kafka", "rabbitmq",
)  # fmt: skip


def main(names):
    chosen = names or list(MUTANTS)
    if unknown := set(chosen) - set(MUTANTS):
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MUTANTS)}")
        return 2
    with shared_servers() if not names else contextlib.nullcontext(), ThreadPoolExecutor(2) as pool:
        ends = list(zip(chosen, pool.map(told, chosen), strict=True))
    survivors = [name for name, caught in ends if not caught]
    print("\n".join(["", f"{len(chosen)} mutants, {len(survivors)} survived", *survivors]))
    return 1 if survivors else 0


def told(name):
    """Hunt a mutant and print what came of it; returns whether it was caught."""
    try:
        caught = hunt(name)
        end = f"✓ {caught}" if caught else "✗ SURVIVED"
    except BrokenHuntError as error:
        caught, end = None, f"✗ {error}"
    mutant = MUTANTS[name]
    print(f"{name:26} {mutant.rule:3} {mutant.story}\n{'':26}     {end}", flush=True)
    return caught is not None


@contextlib.contextmanager
def shared_servers():
    run = Run(data_root() / f"postroom-run-{uuid.uuid4().hex[:12]}", os.getpid())
    try:
        for name in SERVERS:
            os.environ[f"POSTROOM_TEST_{name.upper()}_URL"] = run.url(name)
        yield
    finally:
        run.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
