"""Every planted bug is caught: a promise whose mechanism is taken out turns something red."""

import pytest

from tests.mutants.catalog import MUTANTS
from tests.mutants.hunt import hunt

# Hunted on the servers of this run, which are there already: the bug is on our side of the wire.
SHARED = {
    "kafka": "kafka", "rabbit": "rabbitmq", "pg": "postgres", "my": "mariadb", "mongo": "mongo",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_caught(name, request, monkeypatch):
    server = SHARED.get(name.partition("-")[0])
    if server is not None:
        url = request.getfixturevalue(f"{server}_url")
        monkeypatch.setenv(f"POSTROOM_TEST_{server.upper()}_URL", url)
    assert hunt(name) is not None, MUTANTS[name].story
