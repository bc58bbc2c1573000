"""Bugs in what questions cost: one statement per stream, no limit, no index."""

from tests.mutants.mutant import Mutant

MYSQL = "tests/scenario/test_mysql_statements.py::"
OF_ALL = "test_the_counts_of_all_streams_cost_what_those_of_one_do"


def _sqlite_counts_each():
    from postroom.stores.sqlite import operations

    stats = operations.stats

    def each(db, stream):
        for name in operations.streams(db) if stream is None else []:
            stats(db, name)
        return stats(db, stream)

    operations.stats = each


def _postgres_counts_each():
    from postroom.stores.postgres import operations

    stats = operations.stats

    async def each(db, stream):
        for name in await operations.streams(db) if stream is None else []:
            await stats(db, name)
        return await stats(db, stream)

    operations.stats = each


def _mysql_counts_each():
    from postroom.stores.mysql import operations

    operations._FEW_STREAMS = 1_000_000


def _mongo_counts_each():
    from postroom.stores.mongo import operations

    operations._FEW_STREAMS = 1_000_000


COST_MUTANTS = {
    "sqlite-counts-each-stream": Mutant(
        "D1", "counts of all streams cost statements for each of them", _sqlite_counts_each,
        tests=(f"tests/unit/test_sqlite_plans.py::{OF_ALL}",),
    ),
    "pg-counts-each-stream": Mutant(
        "D1", "the same on PostgreSQL", _postgres_counts_each,
        tests=(f"tests/scenario/test_postgres_statements.py::{OF_ALL}",),
    ),
    "my-counts-each-stream": Mutant(
        "D1", "the same on MySQL", _mysql_counts_each,
        tests=(
            f"{MYSQL}test_the_counts_of_many_streams_cost_few_statements",
        ),
    ),
    "mongo-counts-each-stream": Mutant(
        "D1", "the same on MongoDB", _mongo_counts_each,
        tests=(
            "tests/unit/test_mongo_cost.py::test_the_counts_of_many_streams_cost_few_commands",
        ),
    ),
}  # fmt: skip
