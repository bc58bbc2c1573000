"""What all tests share."""

import re

import pytest

pytest_plugins = ["postroom.testing.plugin"]

# What belongs to the stores and brokers that are still a preview, and what is not stable yet.
_PREVIEW = re.compile(
    r"scenario/test_(mongo|kafka|rabbitmq|consumer|wiki|faststream)_?\w*\.py"
    r"|contract/test_store_mongo\.py"
    r"|contract/test_broker_(kafka|rabbitmq)\.py"
    r"|contract/test_consumer_(kafka|rabbitmq)\.py"
    r"|contract/test_transactions_pymongo\.py"
    r"|unit/test_(mongo|kafka|rabbitmq)_\w+\.py"
    r"|mutants/test_mutants\.py::test_the_mutant_is_caught\[(pg|my|mongo|kafka|rabbit|in)-"
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if _PREVIEW.search(item.nodeid):
            item.add_marker(pytest.mark.preview)
