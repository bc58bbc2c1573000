"""Plants the mutant named in POSTROOM_MUTANT when it is imported: for processes that are no tests."""

import os

from tests.mutants.catalog import MUTANTS

MUTANTS[os.environ["POSTROOM_MUTANT"]].plant()
