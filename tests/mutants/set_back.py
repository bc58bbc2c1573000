"""Bugs that only a store shows which lost committed transactions and gives their numbers again."""

from tests.mutants import mysql, postgres
from tests.mutants.mutant import Mutant

SAME_NUMBER = "test_another_event_under_the_same_number_is_left_alone"
SET_BACK = "tests/scenario/test_postgres_set_back.py"
MYSQL_SET_BACK = "tests/scenario/test_mysql_set_back.py"


def _by_number():
    from postroom.stores.memory.tables import Tables

    Tables.find = lambda self, record: self.rows.get(record.seq)


def _by_number_sqlite():
    from postroom.stores.sqlite.statements import load_queries

    queries = load_queries("postroom_")
    for name in list(queries):
        if name.startswith("settle_"):
            queries[name] = queries[name].replace("AND n.value IN (o.id, hex(o.id))", "")
    done = "AND n.key IN (seq || '/' || postroom_outbox.id, seq || '/' || hex(postroom_outbox.id))"
    assert done in queries["settle_done"]
    queries["settle_done"] = queries["settle_done"].replace(done, "")


def _by_number_mysql():
    mysql._rewrite("settle_done", "AND (seq, id) IN %(names)s", "")


def _by_number_mysql_slowly():
    mysql._rewrite("settle_failed", "AND o.id = UNHEX(f.id)", "")


def _by_number_postgres():
    postgres._rewrite("AND o.id = in_ids[width_bucket(o.seq, in_seqs)]", "")


def _by_number_postgres_slowly():
    postgres._rewrite("AND o.id = n.id", "")


def _floors_outlive_a_crash():
    postgres._rewrite("AND postroom_backend_start() <= in_epoch[2]", "")


def _floors_outlive_setval():
    postgres._rewrite("AND (SELECT max(f) FROM unnest(in_floors) AS f) <= 1", "AND 0 <= 1")


def _floors_outlive_truncate():
    postgres._rewrite("postroom_epoch() = in_epoch[1]", "true")


def _floors_beside_a_cache():
    postgres._rewrite("s.seqcache = 1 AND s.seqincrement > 0 AND NOT s.seqcycle", "true")


def _floors_ignore_what_is_staged():
    import inspect

    from postroom.stores.postgres import floors

    text = inspect.getsource(floors.Floors._raise)
    old = "if self._moving or self._moves != moves:"
    assert old in text, f"nothing says {old!r} any more"
    text = inspect.cleandoc("\n" + text.replace(old, "if self._moving:"))
    space = dict(vars(floors))
    exec(compile(text, floors.__file__, "exec", 0x1000000), space)  # annotations stay text
    floors.Floors._raise = space["_raise"]


def _effects_by_memory():
    from postroom.engine.handlers.handlers import Handlers

    async def believed(self, record, outcome):
        return outcome

    Handlers._proved = believed


def _no_witnesses():
    from postroom.engine.relay.witnesses import Witnesses

    Witnesses.of = lambda self, lanes, now: []


def _claims_unread():
    from postroom.settlement import Settlement

    Settlement.weigh = lambda self, lanes, there: set(lanes)


def _lost_effects_are_charged():
    from postroom.settlement import Settlement

    part = Settlement.part

    def without_done(self, wanted):
        found = part(self, wanted)
        found.done = [] if self.lost else found.done
        return found

    Settlement.part = without_done


def _skip_without_lock():
    postgres._rewrite("ORDER BY f.stream, f.lane FOR NO KEY UPDATE", "ORDER BY f.stream, f.lane")


FLOOR = "tests/scenario/test_postgres_floors.py"
FENCE = "tests/scenario/test_postgres_fence.py"
TAKEN_BACK = f"{FLOOR}::test_a_floor_is_not_used_when_numbers_were_taken_back"

LOST_EFFECTS = f"{SET_BACK}::test_effects_that_a_replica_lacks_are_done_again"

SET_BACK_MUTANTS = {
    "effects-by-memory": Mutant(
        "G2", "an event is settled as done although the database has lost its effect", _effects_by_memory,
        sim=("set_back", "slow_store", "slow_broker"), tests=(f"{LOST_EFFECTS}[the store's]",),
    ),
    "no-witnesses": Mutant(
        "G4", "an event is begun although the effect of an earlier one of its key is lost", _no_witnesses,
        tests=("tests/unit/test_lost_effects.py::test_the_next_of_the_key_waits_for_a_lost_effect",),
    ),
    "claims-unread": Mutant(
        "G2", "a store settles whatever a relay claims", _claims_unread,
        tests=("tests/contract/test_store_sqlite.py::TestSqliteStore::test_an_effect_that_was_lost_is_not_settled",),
    ),
    "lost-effect-charged": Mutant(
        "G7", "an effect that the database lost costs its event an attempt", _lost_effects_are_charged,
        tests=(f"{LOST_EFFECTS}[the store's]",),
    ),
    "settle-by-number": Mutant(
        "G2", "a settle names rows by their numbers alone", _by_number, sim=("set_back", "slow_store", "slow_broker"),
    ),
    "pg-floor-outlives-a-crash": Mutant(
        "R6", "a floor is used by backends that were started after a crash",
        _floors_outlive_a_crash,
        tests=(f"{FLOOR}::test_a_floor_is_not_used_by_a_backend_that_is_younger_than_its_proof",),
    ),
    "pg-floor-outlives-setval": Mutant(
        "R6", "a floor above the sequence is used", _floors_outlive_setval, tests=(TAKEN_BACK,),
    ),
    "pg-floor-outlives-truncate": Mutant(
        "R6", "a floor is used after TRUNCATE … RESTART IDENTITY", _floors_outlive_truncate,
        tests=(TAKEN_BACK,),
    ),
    "pg-floor-cache": Mutant(
        "R6", "a floor is proven although sessions hold numbers in a cache",
        _floors_beside_a_cache, tests=(f"{FLOOR}::test_a_sequence_with_a_cache_has_no_floor",),
    ),
    "pg-floor-passes-staged": Mutant(
        "R6", "a floor is raised although an event was staged while it was looked for",
        _floors_ignore_what_is_staged,
        tests=(f"{FLOOR}::test_what_is_staged_while_a_floor_is_looked_for_is_not_passed_over",),
    ),
    "pg-skip-unlocked": Mutant(
        "L7", "an operator's verb does not lock the lease before it looks", _skip_without_lock,
        tests=(f"{FENCE}::test_a_skip_waits_for_a_settle_under_way_and_finds_the_event_done",),
    ),
    "settle-by-number-sqlite": Mutant(
        "G2", "a settle names rows by their numbers alone, in SQLite", _by_number_sqlite,
        tests=(f"tests/contract/test_store_sqlite.py::TestSqliteStore::{SAME_NUMBER}",),
    ),
    "settle-by-number-mysql": Mutant(
        "G2", "a settle names done rows by their numbers alone, in MySQL", _by_number_mysql,
        tests=(MYSQL_SET_BACK,),
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
