"""The real relay in everyday and bad weather; each scene is played on every store that is here."""

import pytest

pytest.register_assert_rewrite(
    "tests.scenario.life",
    "tests.scenario.failures",
    "tests.scenario.handlers",
    "tests.scenario.sharing",
)
