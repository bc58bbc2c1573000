"""What `add` costs beside an INSERT written by hand, for each driver."""

import asyncio
import tempfile

from bench import add
from bench.result import beside, versions
from tests.contract.database import MariadbDatabase, PostgresDatabase

KINDS = ("add", "by hand")


def measure(yard):
    databases = [
        PostgresDatabase(yard.server("postgres18").url),
        MariadbDatabase(yard.server("mariadb").url),
    ]
    for database in databases:
        database.create()
    transactions = yard.size(400, 100)
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        contests = asyncio.run(add.run(folder, databases, yard.rounds, transactions))
    results = []
    for name, found in contests.items():
        for part in ("statement", "transaction"):
            figures = {f"{name}, {part}: {kind}": found[kind, part] for kind in KINDS}
            results.append(
                beside(
                    figures, *figures, suite="add", part="drivers", unit="µs", batch=1,
                    events=transactions, quick=yard.quick, versions=versions(),
                )
            )  # fmt: skip
    return results


PARTS = {"drivers": measure}
