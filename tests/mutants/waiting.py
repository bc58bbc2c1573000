"""Bugs in cancelling and rescheduling events that wait for their time."""

from tests.mutants.mutant import Mutant

MEMORY = "tests/contract/test_store_memory.py::TestMemoryStore::"
SQLITE = "tests/contract/test_store_sqlite.py::TestSqliteStore::"
POSTGRES = "tests/contract/test_store_postgres.py::TestPostgres15Store::"
SQLITE3 = "tests/contract/test_transactions_sqlite3.py"


def _rewrite_write_side(name, old, new):
    """Change a statement of the adapters for SQLite."""
    from postroom.transactions import dialects, queries

    load = queries.load

    def changed(dialect, style, prefix):
        found = dict(load(dialect, style, prefix))
        if dialect == "sqlite":
            assert old in found[name].sql, f"{name}.sql no longer says {old!r}"
            found[name] = found[name]._replace(sql=found[name].sql.replace(old, new))
        return found

    dialects.load = changed


def _cancel_ready_events():
    _rewrite_write_side("cancel", "stage = 'waiting'", "stage <> 'over'")


def _reschedule_makes_ready():
    _rewrite_write_side("reschedule", "SET available_at", "SET stage = 'ready', available_at")


def _stager_takes_locked_events():
    from postroom.stores.memory.store import MemoryStore

    stage = MemoryStore.stage

    async def blind(self, stream, lanes, limit):
        locks, self.locks = self.locks, {}
        try:
            return await stage(self, stream, lanes, limit)
        finally:
            self.locks = locks

    MemoryStore.stage = blind


def _stager_waits_for_events():
    from tests.mutants.postgres import _rewrite

    _rewrite("FOR NO KEY UPDATE SKIP LOCKED) AS w", "FOR NO KEY UPDATE) AS w")


def _operator_cancels_failed_events():
    from tests.mutants.catalog import _rewrite

    _rewrite("waiting_chosen", "state = :state", "state <> :state || '.'")


WAITING_MUTANTS = {
    "cancel-ready": Mutant(
        "G5", "an event that a relay may have read is cancelled", _cancel_ready_events,
        tests=(f"{SQLITE}test_an_event_that_was_ready_once_is_too_late",),
    ),
    "reschedule-past-the-stager": Mutant(
        "R6", "a new time in the past makes the event ready behind the stager's back",
        _reschedule_makes_ready,
        tests=(f"{SQLITE3}",),
    ),
    "stage-locked-events": Mutant(
        "G5", "the stager makes an event ready that a transaction is cancelling",
        _stager_takes_locked_events,
        tests=(f"{MEMORY}test_the_stager_leaves_an_event_that_is_being_cancelled",),
    ),
    "pg-stager-waits": Mutant(
        "W7", "the stager waits for a transaction that is cancelling an event",
        _stager_waits_for_events,
        tests=(f"{POSTGRES}test_the_stager_leaves_an_event_that_is_being_cancelled",),
    ),
    "operator-cancels-attempted": Mutant(
        "G5", "an operator cancels an event that was attempted", _operator_cancels_failed_events,
        tests=(f"{SQLITE}test_an_event_that_was_ready_once_is_too_late",),
    ),
}  # fmt: skip
