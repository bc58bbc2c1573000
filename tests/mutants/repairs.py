"""Bugs in the tools that repair and delete: purge, edit, forget."""

from tests.mutants.mutant import Mutant

FORGET = "tests/cli/test_forget.py"
SQLITE = "tests/contract/test_store_sqlite.py"
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


def _both_are_sent():
    from postroom.stores.sqlite import thread

    run = thread.Database.run

    def forgetful(self, name, /, **values):
        return None if name == "edit_replaced" else run(self, name, **values)

    thread.Database.run = forgetful


def _edited_at_the_end():
    from postroom.stores.sqlite import commands

    choose = commands._choose

    def unnumbered(db, ids, *, over, now):
        found = choose(db, ids, over=over, now=now)
        return [event._replace(kseq=event.kseq and 0) for event in found]

    commands._choose = unnumbered


def _any_json():
    from postroom.stores import edits

    edits._is_json = lambda content_type: False


def _inbox_keeps_all():
    from postroom.stores.sqlite import commands

    commands.inboxes = lambda db: []


def _unsent_are_lost():
    from postroom.cli import forget

    forget._refuse = lambda found, *, unsent: None


def _inboxes_are_fine():
    from postroom.admin import diagnosis

    diagnosis.judge_inboxes = lambda *given: iter(())


REPAIR_MUTANTS = {
    "forget-inbox-keeps-all": Mutant(
        "G6", "an erased person stays in the inbox", _inbox_keeps_all,
        tests=(f"{FORGET}::test_a_person_is_erased_everywhere",),
    ),
    "forget-unsent-are-lost": Mutant(
        "G2", "a privacy request loses events that were not sent", _unsent_are_lost,
        tests=(f"{FORGET}::test_unsent_events_are_refused_and_strict_ones_always",),
    ),
    "forget-inboxes-are-fine": Mutant(
        "I1", "the doctor does not mind an inbox that grows", _inboxes_are_fine,
        tests=(f"{FORGET}::test_an_inbox_of_accept_by_hand_is_pruned_and_named_by_the_doctor",),
    ),
    "edit-both-are-sent": Mutant(
        "L7", "an edited dead letter can still be replayed", _both_are_sent,
        tests=(f"{SQLITE}::TestSqliteStore::test_a_replaced_dead_letter_is_never_sent",),
    ),
    "edit-at-the-end": Mutant(
        "B6", "an edited strict event leaves a gap", _edited_at_the_end,
        tests=(f"{SQLITE}::TestSqliteStore::test_an_edited_strict_event_takes_number_and_place",),
    ),
    "edit-any-json": Mutant(
        "G7", "an edit sends what add refuses", _any_json,
        tests=(f"{SQLITE}::TestSqliteStore::test_what_add_refuses_is_refused",),
    ),
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
