"""Bugs with odd rows, odd files and odd sessions, that one test each must notice."""

from tests.mutants.mutant import Mutant


def _flawed_rows_are_sent():
    from postroom.model.unreadable_rows import FlawedRecord

    FlawedRecord.flaw = None


def _headers_unseen():
    from postroom.model import unreadable_rows

    unreadable_rows._are_headers = lambda value: True


def _file_is_what_it_was():
    from postroom.stores.sqlite.thread import OpenFile

    OpenFile.is_replaced = False


def _clock_before_the_lock():
    from contextlib import contextmanager

    from postroom.stores.sqlite import thread

    change = thread.Database.change

    @contextmanager
    def early(self):
        now = thread.host_microseconds()
        with change(self):
            yield now

    thread.Database.change = early


def _session_bind_unseen():
    from postroom.transactions import sqlalchemy

    refuse = sqlalchemy._refuse_several_binds

    class Unbound:
        bind = None

        def __init__(self, session):
            self._session = session

        def __getattr__(self, name):
            return getattr(self._session, name)

    sqlalchemy._refuse_several_binds = lambda session: refuse(Unbound(session))


def _notes_asked_for_again():
    from postroom.transactions.acceptances import Acceptances

    done_before = Acceptances.done_before

    async def from_the_beginning(self, consumer, seconds, limit, skip):
        return await done_before(self, consumer, seconds, limit, 0)

    Acceptances.done_before = from_the_beginning


def _any_lane_is_one():
    from postroom.store import Lease, Member, Membership
    from postroom.stores.sqlite import leases as leases_module

    def trusting(members, leases):
        return Membership(
            tuple(Member(owner, bool(healthy), name) for owner, healthy, name in members),
            tuple(Lease(*row) for row in leases),
        )

    leases_module.make_membership = trusting


def _any_row_is_skipped():
    from postroom.stores.sqlite import commands

    commands.refuse_to_skip = lambda event_id, row: None


def _refusals_pass():
    from postroom.transactions import conflicts

    conflicts._is_refusal = conflicts._is_too_much


FLAWED = "tests/contract/test_store_sqlite.py::TestSqliteStore::test_a_row_that_cannot_be"
SQLITE = "tests/contract/test_store_sqlite.py::TestSqliteStore"
NOTES = "tests/scenario/test_inbox_memory.py"
SESSIONS = "tests/contract/test_transactions_sqlalchemy.py"


def _keys_without_an_index():
    from postroom.stores.sqlite.statements import load_queries

    queries = load_queries("postroom_")
    assert "INDEXED BY postroom_outbox_key" in queries["find_by_key"]
    queries["find_by_key"] = queries["find_by_key"].replace(
        "INDEXED BY postroom_outbox_key", "NOT INDEXED"
    )


def _host_expires():
    from postroom.settlement import Settlement

    Settlement.keep = lambda self, places: None


ROW_MUTANTS = {
    "sqlite-no-index-of-keys": Mutant(
        "D1", "the events of a key are looked for in all events, in SQLite",
        _keys_without_an_index, tests=("tests/unit/test_sqlite_plans.py",),
    ),
    "notes-asked-for-again": Mutant(
        "F1", "old notes that stay are asked for again and again", _notes_asked_for_again,
        tests=(f"{NOTES}::test_notes_that_stay_although_they_should_go_are_told_and_passed",),
    ),
    "any-row-skipped": Mutant(
        "B6", "a marker that cannot be sent is written in the place of an odd row",
        _any_row_is_skipped,
        tests=(f"{FLAWED}_a_record_is_replayed_or_skipped_like_any_other",),
    ),
    "refusals-pass": Mutant(
        "F1", "a message whose row MySQL refuses is stored again without end, before all others",
        _refusals_pass,
        tests=("tests/unit/test_consumer_parts.py::test_what_passes_is_told_from_what_stays",),
    ),
    "any-lane": Mutant(
        "F1", "a row with half a lane in it is served in the place of a lane", _any_lane_is_one,
        tests=(f"{SQLITE}::test_an_odd_lease_costs_its_lane_at_most",),
    ),
    "flawed-rows-sent": Mutant(
        "G7", "rows that cannot be events are sent", _flawed_rows_are_sent,
        tests=("tests/unit/test_unreadable_rows.py",),
    ),
    "headers-unseen": Mutant(
        "G7", "headers of any shape go to the destination", _headers_unseen,
        tests=(f"{FLAWED}_a_record_costs_one_event",),
    ),
    "sqlite-same-file": Mutant(
        "G7", "a file that was replaced is not noticed", _file_is_what_it_was,
        tests=("tests/scenario/test_sqlite_files.py",),
    ),
    "sqlite-early-clock": Mutant(
        "L2", "SQLite's clock is read before the write lock", _clock_before_the_lock,
        tests=("tests/unit/test_sqlite_clock.py",),
    ),
    "expiry-by-the-host": Mutant(
        "G1", "the clock of a relay's host decides what has expired", _host_expires,
        tests=(
            "tests/scenario/test_expiry.py::test_a_host_whose_clock_is_ahead_loses_no_event",
        ),
    ),
    "session-bind-unseen": Mutant(
        "W3", "a session's own bind beside its others is not looked at", _session_bind_unseen,
        tests=(f"{SESSIONS}::test_a_session_of_two_databases_is_refused",),
    ),
}  # fmt: skip
