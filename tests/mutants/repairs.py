"""Bugs in the tools that repair and delete: purge."""

from tests.mutants.mutant import Mutant

MEMORY = "tests/contract/test_store_memory.py"
PRUNER = "tests/unit/test_pruner.py"


def _purge_of_anything():
    from postroom.stores.memory import commands

    commands.UNSENT = (*commands.UNSENT, "done")


def _dead_of_all_streams():
    from postroom.stores.memory.store import MemoryStore

    prune_dead = MemoryStore.prune_dead

    async def everywhere(self, stream, older_than_seconds, after_seq, limit):
        for name in await self.streams():
            found = await prune_dead(self, name, older_than_seconds, after_seq, limit)
        return found

    MemoryStore.prune_dead = everywhere


def _walk_in_one_round():
    from postroom.engine.relay import pruner

    pruner._STEPS = 1_000


REPAIR_MUTANTS = {
    "purge-of-anything": Mutant(
        "G7", "a purge deletes done events", _purge_of_anything,
        tests=(MEMORY,),
    ),
    "purge-of-all-streams": Mutant(
        "G7", "a relay deletes the dead letters of other streams", _dead_of_all_streams,
        tests=(PRUNER,),
    ),
    "purge-without-end": Mutant(
        "S2.2", "a round walks all dead letters", _walk_in_one_round, tests=(PRUNER,)
    ),
}  # fmt: skip
