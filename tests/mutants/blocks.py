"""Bugs in what becomes of a block when another event of its key fails."""

from tests.mutants.mutant import Mutant

_TEST = "test_a_replayed_event_that_fails_does_not_let_its_key_pass_the_one_that_waits"
_SECOND = "test_a_second_failure_does_not_raise_the_barrier_above_the_first"


def _nobody_steps_back():
    from postroom.stores.memory.tables import BlockRow, Tables

    def block(self, record):
        self.blocks[record.stream, record.key_hash] = BlockRow(record.lane, record.seq)

    Tables.block = block


def _nobody_steps_back_sqlite():
    from postroom.stores.sqlite.statements import load_queries

    queries = load_queries("postroom_")
    assert "f.seq < b.barrier" in queries["settle_behind"]
    queries["settle_behind"] = queries["settle_behind"].replace("f.seq < b.barrier", "0")


def _barrier_is_raised_sqlite():
    from postroom.stores.sqlite.statements import load_queries

    queries = load_queries("postroom_")
    old = "min(postroom_block.barrier, excluded.barrier)"
    assert old in queries["settle_block"]
    queries["settle_block"] = queries["settle_block"].replace(old, "excluded.barrier")


BLOCK_MUTANTS = {
    "raised-barrier-sqlite": Mutant(
        "B1",
        "a second failure of a key raises the barrier above the first, in SQLite's settle",
        _barrier_is_raised_sqlite,
        tests=(f"tests/contract/test_store_sqlite.py::TestSqliteStore::{_SECOND}",),
    ),
    "no-stepping-back": Mutant(
        "B1",
        "a lower failed head takes over the block, and the former one is forgotten",
        _nobody_steps_back,
        tests=(f"tests/contract/test_store_memory.py::TestMemoryStore::{_TEST}",),
    ),
    "no-stepping-back-sqlite": Mutant(
        "B1",
        "the same, in SQLite's settle",
        _nobody_steps_back_sqlite,
        tests=(f"tests/contract/test_store_sqlite.py::TestSqliteStore::{_TEST}",),
    ),
}
