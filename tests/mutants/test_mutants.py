"""Every planted bug is caught: a promise whose mechanism is taken out turns something red."""

import pytest

from tests.mutants.catalog import MUTANTS
from tests.mutants.hunt import hunt


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_caught(name):
    assert hunt(name) is not None, MUTANTS[name].story
