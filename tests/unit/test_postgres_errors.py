"""What each kind of failure means to a relay: nothing happened, nobody knows, or it cannot be."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout

from postroom.errors import (
    SchemaError,
    StoreError,
    StoreLockedError,
    StoreRefusedError,
    StoreRetryableError,
    StoreUnknownError,
)
from postroom.stores.postgres.errors import could_not_connect, is_fatal, translate

NOTHING_HAPPENED = [
    errors.SerializationFailure,
    errors.QueryCanceled,
    errors.DiskFull,
    errors.OutOfMemory,
    errors.TooManyConnections,
    errors.ReadOnlySqlTransaction,
    errors.CannotConnectNow,
]


@pytest.mark.promise("L5")
@pytest.mark.parametrize("kind", NOTHING_HAPPENED)
def test_an_error_that_the_server_reports_has_changed_nothing(kind):
    error = translate(kind("the first line\nDETAIL: more"))
    assert type(error) is StoreRetryableError
    assert str(error) == "PostgreSQL: the first line"


@pytest.mark.promise("L5")
@pytest.mark.parametrize(
    "kind", [errors.AdminShutdown, errors.CrashShutdown, psycopg.OperationalError]
)
def test_a_lost_connection_leaves_it_open_what_happened(kind):
    assert type(translate(kind("gone"), broken=True)) is StoreUnknownError
    assert type(translate(kind("gone"), broken=True, undone=True)) is StoreRetryableError


def test_an_error_without_a_state_ends_the_connection():
    assert is_fatal(psycopg.OperationalError("server closed the connection unexpectedly"))
    assert not is_fatal(errors.DeadlockDetected("deadlock"))


@pytest.mark.parametrize("kind", [errors.DeadlockDetected, errors.LockNotAvailable])
def test_a_lock_that_another_transaction_holds_is_told_apart(kind):
    assert type(translate(kind("locked"))) is StoreLockedError


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (errors.UniqueViolation, "23505"),
        (errors.CheckViolation, "23514"),
        (errors.NumericValueOutOfRange, "22003"),
        (errors.RaiseException, "P0001"),
    ],
)
def test_refused_values_are_told_apart(kind, state):  # X-H2
    error = translate(kind("no"))
    assert type(error) is StoreRefusedError
    assert f"no ({state})" in str(error)


def test_a_value_that_the_driver_refuses_leaves_the_connection_alone():
    error = psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    assert not is_fatal(error)
    assert type(translate(error)) is StoreRefusedError


def test_other_errors_are_the_stores():
    error = translate(errors.SyntaxError("what?"))
    assert type(error) is StoreError
    assert "what? (42601)" in str(error)


@pytest.mark.parametrize(
    "kind", [errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName]
)
def test_missing_tables_are_a_matter_of_the_schema(kind):
    error = translate(kind('relation "postroom_outbox" does not exist'))
    assert type(error) is SchemaError
    assert "postroom migrate" in str(error)


@pytest.mark.parametrize(
    ("said", "grant"),
    [
        ("permission denied for table postroom_meta", "GRANT SELECT ON postroom_meta"),
        ("permission denied for table postroom_lease", "DELETE ON postroom_lease"),
        ("permission denied for table postroom_counter", "SELECT, INSERT, UPDATE ON postroom_cou"),
        ("permission denied for table postroom_audit", "GRANT SELECT, INSERT ON postroom_audit"),
        ("permission denied for sequence s_seq", "GRANT SELECT ON SEQUENCE s_seq"),
        ("permission denied for function f", "GRANT EXECUTE ON FUNCTION f"),
        ("permission denied for schema shop", "GRANT USAGE ON SCHEMA shop"),
        ("must be owner of table x", "Grant it"),
    ],
)
def test_a_missing_right_is_named(said, grant):
    error = translate(errors.InsufficientPrivilege(said))
    assert type(error) is StoreError
    assert grant in str(error)


def test_the_pool():
    assert type(translate(PoolTimeout("couldn't get a connection"))) is StoreRetryableError
    assert "closed" in str(translate(PoolClosed("the pool is closed")))


def test_what_is_ours_already_stays():
    error = StoreError("ours")
    assert translate(error) is error


def test_a_server_that_is_away():
    error = could_not_connect(psycopg.OperationalError("connection refused\nIs it running?"))
    assert isinstance(error, StoreError)
    assert str(error) == "cannot connect to PostgreSQL: connection refused"
