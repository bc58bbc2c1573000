"""Bugs that only a store shows which lost committed transactions and gives their numbers again."""

from tests.mutants import mysql, postgres
from tests.mutants.mutant import Mutant

SAME_NUMBER = "test_another_event_under_the_same_number_is_left_alone"
SET_BACK = "tests/scenario/test_postgres_set_back.py"


def _by_number():
    from postroom.stores.memory.tables import Tables

    Tables.find = lambda self, record: self.rows.get(record.seq)


def _by_number_sqlite():
    from postroom.stores.sqlite.statements import load_queries

    queries = load_queries("postroom_")
    for name in list(queries):
        if name.startswith("settle_"):
            queries[name] = queries[name].replace("AND n.value IN (o.id, hex(o.id))", "")


def _by_number_mysql():
    mysql._rewrite("settle_done", "AND (seq, id) IN %(names)s", "")


def _by_number_mysql_slowly():
    mysql._rewrite("settle_failed", "AND o.id = UNHEX(f.id)", "")


def _by_number_postgres():
    postgres._rewrite("AND o.id = in_ids[width_bucket(o.seq, in_seqs)]", "")


def _by_number_postgres_slowly():
    postgres._rewrite("AND o.id = n.id", "")


SET_BACK_MUTANTS = {
    "settle-by-number-sqlite": Mutant(
        "G2", "a settle names rows by their numbers alone, in SQLite", _by_number_sqlite,
        tests=(f"tests/contract/test_store_sqlite.py::TestSqliteStore::{SAME_NUMBER}",),
    ),
    "settle-by-number-mysql": Mutant(
        "G2", "a settle names done rows by their numbers alone, in MySQL", _by_number_mysql,
        tests=(f"tests/contract/test_store_mysql.py::TestMysqlStore::{SAME_NUMBER}",),
    ),
    "settle-by-number-mysql-slowly": Mutant(
        "G2", "a settle names failed rows by their numbers alone, in MySQL",
        _by_number_mysql_slowly,
        tests=(f"tests/contract/test_store_mysql.py::TestMysqlStore::{SAME_NUMBER}",),
    ),
    "settle-by-number-postgres": Mutant(
        "G2", "a settle names rows by their numbers alone, in PostgreSQL", _by_number_postgres,
        tests=(SET_BACK,),
    ),
    "settle-by-number-postgres-slowly": Mutant(
        "G2", "a settle with failures names rows by their numbers alone, in PostgreSQL",
        _by_number_postgres_slowly,
        tests=(f"tests/contract/test_store_postgres.py::TestPostgres18Store::{SAME_NUMBER}",),
    ),
}  # fmt: skip
