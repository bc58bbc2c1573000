"""`make mutants`: plant one bug at a time and show what catches it."""

import sys
from concurrent.futures import ThreadPoolExecutor

from tests.mutants.catalog import MUTANTS
from tests.mutants.hunt import hunt


def main(names):
    chosen = names or list(MUTANTS)
    if unknown := set(chosen) - set(MUTANTS):
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MUTANTS)}")
        return 2
    survivors = []
    with ThreadPoolExecutor(2) as pool:
        for name, caught in zip(chosen, pool.map(hunt, chosen), strict=True):
            mutant = MUTANTS[name]
            print(f"{name:26} {mutant.rule:3} {mutant.story}")
            print(f"{'':26}     {'✓ ' + caught if caught else '✗ SURVIVED'}", flush=True)
            if caught is None:
                survivors.append(name)
    print(f"\n{len(chosen)} mutants, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
