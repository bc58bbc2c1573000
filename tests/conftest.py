"""What all tests share."""

import re

import pytest

pytest_plugins = ["postroom.testing.plugin"]

# What belongs to the stores and brokers that are still a preview.
_PREVIEW = re.compile(
    r"scenario/test_(postgres|mysql|mongo|kafka|rabbitmq)_\w+\.py"
    r"|scenario/test_strict_writers\.py"
    r"|contract/test_store_(postgres|mysql|mongo)\.py"
    r"|contract/test_broker_(kafka|rabbitmq)\.py"
    r"|contract/test_transactions_(psycopg|asyncpg|mysql|django|pymongo)\.py"
    r"|unit/test_(postgres|mysql|mongo|kafka|rabbitmq)_\w+\.py"
    r"|mutants/test_mutants\.py::test_the_mutant_is_caught\[(pg|my|mongo|kafka|rabbit)-"
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        on_a_server = "test_transactions_sqlalchemy" in item.nodeid and any(
            name.endswith("_url") for name in getattr(item, "fixturenames", ())
        )
        if on_a_server or _PREVIEW.search(item.nodeid):
            item.add_marker(pytest.mark.preview)
