"""A pytest plugin for running the contract suites on your own store or broker.

pytest_plugins = ["postroom.testing.plugin"]
"""

from __future__ import annotations

import pkgutil

import pytest

import postroom.testing

pytest.register_assert_rewrite(
    *(
        f"postroom.testing.{module.name}"
        for module in pkgutil.iter_modules(postroom.testing.__path__)
        if module.name != "plugin"
    )
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "req(*ids): the requirements that a test proves")
    config.addinivalue_line("markers", "promise(*ids): the promises and rules that a test proves")
