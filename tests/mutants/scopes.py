"""Bugs of names and memory: whose tables, whose rows, whose room."""

import contextlib

from tests.mutants.mutant import Mutant

MEMORY = "tests/scenario/test_inbox_memory.py"
PARTS = "tests/unit/test_consumer_parts.py"
BUS = "tests/scenario/test_bus_modules.py"
DETOURS = "tests/scenario/test_consumer_detours.py"
STALLS = "tests/scenario/test_consumer_stalls.py"
FAULTS = "tests/scenario/test_consumer_faults.py"
STRICT = "tests/scenario/test_inbox_strict.py"


def _same_name_unnoticed():
    from postroom.engine.handler_sets import HandlerSets

    HandlerSets.compare = lambda self, members: None


def _forget_a_tenth():
    from postroom.engine.relay import inbox_pruner

    forget = inbox_pruner.InboxPruner.__init__

    def early(self, context, forget_accepted):
        forget(self, context, lambda seconds: forget_accepted(seconds / 10))

    inbox_pruner.InboxPruner.__init__ = early


def _forget_all():
    """The old statement: no consumer in it."""
    from postroom.transactions import dialects

    load = dialects.load

    def careless(dialect, style, prefix):
        found = dict(load(dialect, style, prefix))
        if dialect == "sqlite":
            query = found["forget"]
            assert "consumer = ?" in query.sql
            found["forget"] = query._replace(sql=query.sql.replace("consumer = ?", "? IS NOT NULL"))
        return found

    dialects.load = careless
    dialects.dialect_of.cache_clear()


def _forget_dead():
    from postroom.transactions import acceptances

    async def nothing(ids, store, kept_by):
        return set()

    acceptances._may_come_again = nothing


def _strangers_are_kept():
    from postroom.engine.consumer.durable_inbox import DurableInbox

    async def accept(self, rows):
        pass

    DurableInbox._refuse_strangers = accept


def _handlers_default_tables():
    from postroom.engine.handlers import handlers
    from postroom.store import Tables

    set_scopes = handlers.Handlers._set_scopes
    handlers.Handlers._set_scopes = lambda self, tables: set_scopes(self, Tables())


def _one_name():
    from postroom.engine.handlers import handlers

    handlers.name_in_relay = lambda stream, *, own_factory: "handlers"


def _module_left_out():
    from postroom import bus
    from postroom.errors import StoreError

    keep = bus._keep

    async def skip(backlog, wanted, stops):
        with contextlib.suppress(StoreError):
            await keep(backlog, wanted, stops)

    bus._keep = skip


def _no_detours():
    from postroom.engine.consumer.detours import Detours

    Detours.relieve = lambda self: None


def _detours_are_passed():
    from postroom.engine.consumer.detours import Detours

    async def nothing(self):
        return set()

    Detours.look = nothing


SCOPE_MUTANTS = {
    "forget-early": Mutant(
        "I1", "handlers forget after a tenth of the time that was set", _forget_a_tenth,
        tests=(f"{MEMORY}::test_handlers_forget_after_the_time_that_was_set",),
    ),
    "forget-for-all": Mutant(
        "I1", "a consumer forgets the notes of all others", _forget_all,
        tests=(f"{MEMORY}::test_a_consumer_forgets_its_own_notes_only[sqlite]",),
    ),
    "forget-dead-letters": Mutant(
        "I1", "the notes of dead letters are forgotten", _forget_dead,
        tests=(f"{MEMORY}::test_notes_of_what_may_come_again_stay[sqlite]",),
    ),
    "stranger-kept": Mutant(
        "G7", "a row of another stream counts as a stored message", _strangers_are_kept,
        tests=(
            f"{PARTS}::test_a_row_of_somebody_else_is_neither_taken_for_a_kept_message_nor_buried",
        ),
    ),
    "handlers-default-tables": Mutant(
        "G6", "handlers write into the default tables", _handlers_default_tables,
        tests=("tests/unit/test_handlers_tables.py",),
    ),
    "same-name-unnoticed": Mutant(
        "G6", "two services with one consumer name are not noticed", _same_name_unnoticed,
        tests=("tests/unit/test_handler_sets.py",),
    ),
    "one-name-for-all": Mutant(
        "G6", "handlers without a name all have the same", _one_name,
        tests=("tests/unit/test_handlers_names.py",),
    ),
    "bus-module-left-out": Mutant(
        "G2", "a module that cannot be reached is left out, and the event counts as sent",
        _module_left_out,
        tests=(f"{BUS}::test_an_event_for_a_module_that_cannot_be_reached_is_not_sent_yet",),
    ),
    "no-detours": Mutant(
        "G7", "messages behind a key that fails fill the room of all keys", _no_detours,
        tests=(
            f"{DETOURS}::test_many_keys_that_fail_leave_room_for_others",
            f"{STALLS}::test_a_key_that_fails_with_many_messages_behind_it_stops_no_other_key",
        ),
    ),
    "detour-passed": Mutant(
        "G4", "a later message passes those of its key in the backlog", _detours_are_passed,
        tests=(
            f"{DETOURS}::test_what_was_kept_in_durable_mode_is_not_passed_in_direct_mode[sqlite]",
        ),
    ),
}  # fmt: skip
