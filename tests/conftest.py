"""What all tests share."""

import re

import pytest

pytest_plugins = ["postroom.testing.plugin"]

_FAULTS = re.compile(r"scenario/test_(postgres|mysql|mongo|kafka|rabbitmq)_\w+\.py")


def pytest_collection_modifyitems(items):
    for item in items:
        if _FAULTS.search(item.nodeid):
            item.add_marker(pytest.mark.faults)
