"""Bugs in the upgrade of a database that holds data."""

from tests.mutants.mutant import Mutant
from tests.mutants.postgres import _rewrite

UPGRADE = "tests/scenario/test_upgrade.py::"
LIVE = "tests/scenario/test_upgrade_live.py::"


def _no_rights_on_new_columns():
    _rewrite("GRANT INSERT (causation_id, options, expires_at)", "GRANT INSERT (id)")


def _no_rights_on_new_tables():
    _rewrite("ON postroom_control, postroom_operation TO %s", "ON postroom_lease TO %s")


def _functions_are_replaced():
    _rewrite(
        "CREATE FUNCTION postroom_read3(", "DROP FUNCTION postroom_read; CREATE FUNCTION postroom_read3(",
    )  # fmt: skip


def _waits_in_front_of_writers():
    from psycopg import AsyncConnection

    execute = AsyncConnection.execute

    async def without_limit(self, query, *more, **options):
        if isinstance(query, str) and "set_config('lock_timeout'" in query:
            query, more = "SELECT 1", ()
        return await execute(self, query, *more, **options)

    AsyncConnection.execute = without_limit


def _columns_cannot_be_there_already():
    from postroom.stores.mysql import schema

    schema._COLUMN_EXISTS = -1


def _blocks_are_left_behind():
    from postroom.stores.sqlite import statements

    cut = statements._cut

    def forgetful(script):
        if "postroom_operation" in script:
            yield "DELETE FROM postroom_block;"
        yield from cut(script)

    statements._cut = forgetful
    statements.load_migrations.cache_clear()


UPGRADE_MUTANTS = {
    "upgrade-columns-not-granted": Mutant(
        "S4.1", "writers with rights on columns get none on the new ones", _no_rights_on_new_columns,
        tests=(f"{LIVE}test_roles_of_the_old_version_need_no_new_grants",),
    ),
    "upgrade-tables-not-granted": Mutant(
        "S4.1", "relays get no rights on the new tables", _no_rights_on_new_tables,
        tests=(f"{LIVE}test_roles_of_the_old_version_need_no_new_grants",),
    ),
    "upgrade-replaces-functions": Mutant(
        "S4.1", "the functions of running relays are dropped", _functions_are_replaced,
        tests=(f"{UPGRADE}test_writers_and_relays_of_the_old_version_go_on_beside_new_ones[0.0-postgres]",),
    ),
    "upgrade-stops-writers": Mutant(
        "S4.1", "writers queue behind a migration that waits for a long transaction",
        _waits_in_front_of_writers,
        tests=(f"{LIVE}test_a_long_transaction_stops_the_upgrade_but_no_writer",),
    ),
    "upgrade-not-repeatable": Mutant(
        "S4.1", "an interrupted migration cannot be run again", _columns_cannot_be_there_already,
        tests=(f"{LIVE}test_an_upgrade_that_was_killed_after_any_statement_can_be_run_again[0.0-mysql]",),
    ),
    "upgrade-forgets-rows": Mutant(
        "S4.1", "blocks are gone after the migration", _blocks_are_left_behind,
        tests=(f"{UPGRADE}test_everything_is_still_there_after_the_upgrade[0.0-sqlite]",),
    ),
}  # fmt: skip
