"""`import postroom` is cheap, loads no driver, and offers what it says it offers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import postroom

DRIVERS = {
    "aio_pika", "aiormq", "aiosqlite", "asyncmy", "asyncpg", "confluent_kafka", "django",
    "psycopg", "psycopg2", "pymongo", "pymysql", "MySQLdb", "motor", "sqlalchemy",
}  # fmt: skip
OTHERS = {"click", "pytest", "hypothesis", "pydantic", "msgspec"}  # not needed by a library's user

PUBLIC = {
    "AutocommitError", "Broker", "Bus", "CausationError", "ConfigError", "Constant", "Consumer",
    "ConsumerSettings", "Context", "DuplicateEventError", "Event",
    "EventError", "Exponential", "Filter", "Handlers", "Inbox", "Linear", "MemoryBroker", "MemoryStore", "MissingExtraError", "Module",
    "NotDeliveredError",
    "NotFoundError",
    "NumberTakenError", "PausedError", "Outbox", "PayloadError", "PostroomError", "Record",
    "Reject", "Relay", "RelaySettings", "ReplacedError", "Retry", "RetryPolicy", "Routes", "SchemaError", "Source", "State", "Store", "open_store",
    "StoreRetryableError", "StoreError", "StoreLockedError", "StoreUnknownError", "StoreRefusedError", "SyncContext", "SyncInbox", "SyncOutbox",
    "TransactionEndedError", "TransactionError", "UnsupportedConnectionError", "Url", "__version__", "is_conflict", "migrate", "read_headers",
}  # fmt: skip


def loaded(program):
    """Return the top-level modules that a fresh interpreter has after running the program."""
    source = str(Path(postroom.__file__).parents[1])
    code = f"import json, sys; sys.path.insert(0, {source!r}); {program}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


@pytest.mark.parametrize(
    "program",
    [
        "import postroom",
        "from postroom import *",
        "import postroom; postroom.Relay('memory:', 'memory:')",
        "import postroom; postroom.MemoryBroker, postroom.open_store, postroom.Filter",
        "import postroom; postroom.Relay('sqlite:///app.db', 'null:')",
        "import postroom; postroom.Outbox(); postroom.SyncOutbox(); postroom.Inbox('payments')",
    ],
)
def test_nothing_is_loaded_that_was_not_asked_for(program):
    modules = loaded(program)
    assert "postroom" in modules
    assert modules & DRIVERS == set()
    assert modules & OTHERS == set()


def test_the_public_names():
    assert set(postroom.__all__) == PUBLIC
    assert list(postroom.__all__) == sorted(postroom.__all__)
    for name in postroom.__all__:
        assert getattr(postroom, name) is not None


def test_the_version_is_one():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.?(a|b|rc|dev)\d+)?", postroom.__version__)


def test_every_error_is_public():
    """Whoever catches errors of postroom needs nothing but `import postroom`."""
    from postroom import errors

    named = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, Exception)
        and value.__module__ == errors.__name__
    }
    assert named <= set(postroom.__all__)
