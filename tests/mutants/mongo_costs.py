"""Bugs in MongoDB's reconciler, and in what reads and people's questions cost there."""

from tests.mutants.mutant import Mutant

COST = "tests/unit/test_mongo_cost.py::"
RECONCILER = "tests/scenario/test_mongo_reconciler_odd.py::"


def _users_errors_end_it():
    from postroom.errors import ConfigError, StoreError
    from postroom.stores.mongo.reconciler import Reconciler

    run_once = Reconciler.run_once

    async def strict(self, progress=None):
        try:
            return await run_once(self, progress)
        except StoreError:
            raise
        except Exception as error:
            raise ConfigError(str(error)) from error

    Reconciler.run_once = strict


def _same_pause():
    from postroom.stores.mongo.reconciler import Reconciler

    Reconciler._longer = lambda self, pause: 1.0


def _weights_forgotten():
    from postroom.stores.mongo.connection import Connection

    make = Connection.__init__

    class Forgetful(dict):
        def __setitem__(self, name, value):
            pass

    def careless(self, *given, **options):
        make(self, *given, **options)
        self.weights = Forgetful()

    Connection.__init__ = careless


def _no_index_of_keys():
    from postroom.stores.mongo import schema

    load = schema.load_migrations

    def without(prefix):
        return tuple(
            step._replace(commands=tuple(map(_without_key, step.commands))) for step in load(prefix)
        )

    def _without_key(command):
        if command.get("createIndexes") != "postroom_outbox":
            return command
        indexes = [index for index in command["indexes"] if index["name"] != "key"]
        assert len(indexes) < len(command["indexes"])
        return {**command, "indexes": indexes}

    schema.load_migrations = without


MONGO_COST_MUTANTS = {
    "mongo-users-error-ends-it": Mutant(
        "G7", "an error of the user's function ends the reconciler", _users_errors_end_it,
        tests=(f"{RECONCILER}test_an_error_of_the_users_function_costs_one_run",),
    ),
    "mongo-same-pause": Mutant(
        "F2", "the pause of a reconciler that fails does not grow", _same_pause,
        tests=(f"{RECONCILER}test_the_pause_after_errors_grows",),
    ),
    "mongo-weights-forgotten": Mutant(
        "R4", "large events are fetched far beyond the bytes that a read returns",
        _weights_forgotten,
        tests=(f"{COST}test_large_events_are_fetched_as_far_as_they_are_returned",),
    ),
    "mongo-no-index-of-keys": Mutant(
        "D1", "the events of a key are looked for in all events", _no_index_of_keys,
        tests=(f"{COST}test_the_events_of_a_key_are_found_by_an_index",),
    ),
}  # fmt: skip
