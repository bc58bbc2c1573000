"""Bugs in what questions cost: one statement per stream, no limit, no index."""

from tests.mutants.mutant import Mutant

BYTES = "tests/scenario/test_read_bytes.py::"
DEAD = "tests/cli/test_dead_letters.py::"
PLANS = "tests/scenario/test_postgres_plans.py::"
MYSQL = "tests/scenario/test_mysql_statements.py::"
BY_PRIMARY = "test_a_settle_that_deletes_considers_the_primary_key_only"
OF_ALL = "test_the_counts_of_all_streams_cost_what_those_of_one_do"


def _sqlite_counts_each():
    from postroom.stores.sqlite import lookup

    stats = lookup.stats

    def each(db, stream):
        for name in lookup.streams(db) if stream is None else []:
            stats(db, name)
        return stats(db, stream)

    lookup.stats = each


def _postgres_counts_each():
    from postroom.stores.postgres import lookup

    stats = lookup.stats

    async def each(db, stream):
        for name in await lookup.streams(db) if stream is None else []:
            await stats(db, name)
        return await stats(db, stream)

    lookup.stats = each


def _mysql_counts_each():
    from postroom.stores.mysql import lookup

    lookup._FEW_STREAMS = 1_000_000


def _mongo_counts_each():
    from postroom.stores.mongo import lookup

    lookup._FEW_STREAMS = 1_000_000


def _cut_by_the_reader(records, size):
    """Return what fits, after all was fetched."""
    total, fitting = 0, []
    for record in records:
        total += record.size
        if total > size and fitting:
            break
        fitting.append(record)
    return fitting


def _sqlite_fetches_all():
    from postroom.stores.sqlite import read

    read._fetch = lambda cursor, room: _cut_by_the_reader(read.to_records(cursor.fetchall()), room)


def _postgres_fetches_all():
    from postroom.stores.postgres import read

    ask = read.read

    async def greedy(db, floors, request):
        found = await ask(db, floors, request._replace(size=10**12))
        return _cut_by_the_reader(found, request.size)

    read.read = greedy


def _mysql_fetches_all():
    from postroom.stores.mysql import read

    ask = read.read

    async def greedy(session, request):
        found = await ask(session, request._replace(size=10**12))
        return _cut_by_the_reader(found, request.size)

    read.read = greedy


def _postgres_key_without_index():
    from tests.mutants.postgres import _rewrite

    _rewrite("ON postroom_outbox (key, seq) WHERE key IS NOT NULL", "ON postroom_outbox (kseq)")


def _mysql_key_without_index():
    from tests.mutants.mysql import _rewrite

    _rewrite("find_by_key", "FORCE INDEX (postroom_outbox_key)", "FORCE INDEX (PRIMARY)")


def _mysql_deletes_by_every_id():
    from tests.mutants.mysql import _rewrite

    _rewrite("settle_delete_returning", "CONCAT(id)", "id")


def _causes_unlimited():
    from postroom.cli import dead

    dead.MAX_CAUSES = 1_000_000_000


COST_MUTANTS = {
    "sqlite-fetches-all": Mutant(
        "R4", "events beyond the byte limit of a read are fetched", _sqlite_fetches_all,
        tests=(f"{BYTES}test_sqlite_fetches_one_row_more_than_a_read_returns",),
    ),
    "pg-fetches-all": Mutant(
        "R4", "the same on PostgreSQL", _postgres_fetches_all,
        tests=(f"{BYTES}test_the_server_sends_what_a_read_returns[postgres]",),
    ),
    "my-fetches-all": Mutant(
        "R4", "the same on MySQL", _mysql_fetches_all,
        tests=(f"{BYTES}test_the_server_sends_what_a_read_returns[mysql]",),
    ),
    "pg-key-without-index": Mutant(
        "D1", "the events of a key are looked for in all events", _postgres_key_without_index,
        tests=(f"{PLANS}test_the_events_of_a_key_are_found_by_their_index[large-late]",),
    ),
    "my-key-without-index": Mutant(
        "D1", "the same on MySQL", _mysql_key_without_index,
        tests=("tests/scenario/test_mysql_growth.py::test_people_find_the_few_among_the_many",),
    ),
    "my-delete-by-every-id": Mutant(
        "D1", "a settle that deletes combines every id with every number", _mysql_deletes_by_every_id,
        tests=(f"{MYSQL}{BY_PRIMARY}[settle_delete_returning]",),
    ),
    "causes-unlimited": Mutant(
        "S1.9", "`dead` loads every different error into memory", _causes_unlimited,
        tests=(f"{DEAD}test_very_many_different_errors_are_grouped_up_to_a_limit_which_is_told",),
    ),
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
