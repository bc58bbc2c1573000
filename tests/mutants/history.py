"""Bugs in the history of an event."""

from tests.mutants.mutant import Mutant

HISTORY = "tests/unit/test_history.py"
MEMORY = "tests/contract/test_store_memory.py"
SQLITE = "tests/contract/test_store_sqlite.py"


def _unbounded():
    from postroom.model import history

    history.LAST = 10**6


def _recorded_twice():
    from itertools import count

    from postroom.model import history

    numbers = count()
    history._name = lambda entry: next(numbers)


def _lost_at_bury():
    from postroom.stores.sqlite import commands

    append = commands.append
    commands.append = lambda history, entry: append(None, entry)


def _lost_at_settle():
    from postroom.stores.sqlite import settle

    new_history = settle.new_history
    settle.new_history = lambda outcome, stored: new_history(outcome, {})


def _secrets_stored():
    from postroom.model import history

    history.mask = lambda text: text


HISTORY_MUTANTS = {
    "history-unbounded": Mutant(
        "F2", "every failed attempt of an event is kept", _unbounded,
        tests=(f"{MEMORY}::TestMemoryStore::test_failed_attempts_are_recorded_and_bounded",),
    ),
    "history-recorded-twice": Mutant(
        "L5", "a settle repeated after a lost reply records its attempt again", _recorded_twice,
        tests=(f"{MEMORY}::TestMemoryStore::test_a_repeated_settle_records_an_attempt_once",),
    ),
    "history-lost-at-bury": Mutant(
        "F2", "a bury by hand forgets the attempts before it", _lost_at_bury,
        tests=(f"{SQLITE}::TestSqliteStore::test_what_operators_do_is_recorded",),
    ),
    "history-lost-at-settle": Mutant(
        "F2", "a settle does not read the stored history", _lost_at_settle,
        tests=(f"{SQLITE}::TestSqliteStore::test_failed_attempts_are_recorded_and_bounded",),
    ),
    "history-with-secrets": Mutant(
        "D1", "passwords in errors are stored with the event", _secrets_stored,
        tests=(f"{HISTORY}::test_secrets_are_masked",),
    ),
}  # fmt: skip
