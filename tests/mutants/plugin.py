"""Plants the mutant named in POSTROOM_MUTANT before pytest collects anything."""

import os

from tests.mutants.catalog import MUTANTS


def pytest_configure(config):
    MUTANTS[os.environ["POSTROOM_MUTANT"]].plant()
