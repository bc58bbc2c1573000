"""Errors: one tree, data on attributes, messages that say what to do."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta

import pytest

from postroom import errors
from postroom.errors import (
    CausationError,
    ConfigError,
    DuplicateEventError,
    EventError,
    MissingExtraError,
    NotFoundError,
    PayloadError,
    PostroomError,
    Reject,
    Retry,
    UnsupportedConnectionError,
)

ALL = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, PostroomError)
]


def test_the_module_shows_every_error_it_has():
    assert len(ALL) > 10
    for error in ALL:
        assert error.__name__ in errors.__doc__
        assert error.__name__.endswith("Error")


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (EventError, ValueError),
        (ConfigError, ValueError),
        (UnsupportedConnectionError, TypeError),
        (NotFoundError, LookupError),
    ],
)
def test_errors_are_also_what_python_would_raise(error, builtin):
    assert issubclass(error, builtin)


@pytest.mark.parametrize(
    "error",
    [
        EventError("key", "is empty", limit=5),
        PayloadError("$.a", "is bad", limit=7),
        CausationError("is a loop"),
        DuplicateEventError(["a", "b"]),
        UnsupportedConnectionError(object(), ["psycopg"], "Do this"),
        MissingExtraError("kafka", "confluent_kafka"),
        ConfigError("plain"),
    ],
)
def test_errors_survive_a_process_boundary(error):
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_a_duplicate_names_its_ids_and_says_what_to_do():
    one = DuplicateEventError(["e-1"])
    assert str(one) == (
        "an event with id 'e-1' is already in the outbox. If this is a retry of the same work, "
        "treat it as done; otherwise omit `id` to let postroom create one."
    )
    many = DuplicateEventError(iter("abcd"))
    assert many.ids == ("a", "b", "c", "d")
    assert "at least one event of the ids 'a', 'b', 'c' …" in str(many)


def test_a_missing_extra_says_how_to_get_it():
    error = MissingExtraError("kafka", "confluent_kafka")
    assert str(error) == "confluent_kafka is not installed: pip install 'postroom[kafka]'"


def test_an_unsupported_connection_lists_what_is_accepted():
    error = UnsupportedConnectionError(5, ["sqlite3.Connection", "aiosqlite.Connection"], "Try it")
    assert str(error) == (
        "cannot write through builtins.int; supported: sqlite3.Connection, "
        "aiosqlite.Connection. Try it"
    )


def test_signals_are_not_errors():
    for signal in (Retry, Reject):
        assert not issubclass(signal, PostroomError)
    assert Retry(after=timedelta(minutes=2)).after_seconds == 120
    assert Retry(after=1.5).after_seconds == 1.5
    assert Retry("why").after_seconds is None
