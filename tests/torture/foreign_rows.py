"""Rows that were not written by the library: with the rights of a documented writer, where there

are such; in a file or in documents by whoever may write there.
"""

from __future__ import annotations

from contextlib import closing

from postroom import Event, SyncOutbox
from postroom.model.url import Url
from tests.torture.marks import mark
from tests.torture.worlds import open_world

WRITER = "torture_writer"
KEYS = 3


def row_ways(url):
    """Return the ways to write, by their names."""
    scheme = Url.parse(url).scheme

    def good(number):
        key = f"row-{number % KEYS}"
        return lambda: _write(url, [event_of(number, key)]), "done", key

    ways = {"good row": good}
    for flaw in FLAWS[scheme]():
        ways[f"good row beside {flaw}"] = good
        ways[f"row with {flaw}"] = _flawed(url, flaw, SPOILERS[scheme])
    return ways


def event_of(number, key):
    return Event("order.created", {"n": 1}, id=f"row-{mark(number)}", key=key, topic="torture")


def _flawed(url, flaw, spoil):
    return lambda number: (lambda: spoil(url, number, flaw), "dead", "")


def _write(url, events, spoil=lambda world: None):
    with closing(open_world(url)) as world:
        try:
            with world.transaction():
                tx = getattr(world, "session", None) or world.connection
                SyncOutbox().add_many(tx, events)
                spoil(world)
                world.commit()
        except Exception as error:
            if not _is_there(error):  # a commit without an answer, and its second try
                raise


def _is_there(error):
    return "uplicate" in str(error) or "UNIQUE" in str(error)


# -- what is wrong with them ----------------------------------------------------------------------
def _sqlite_flaws():
    from tests.contract.test_store_sqlite import TestSqliteStore

    return list(TestSqliteStore.flaws)


def _postgres_flaws():
    from tests.contract.test_store_postgres import PostgresContract

    return list(PostgresContract.flaws)


def _mysql_flaws():
    from tests.contract.test_store_mysql import TestMysqlStore

    return list(TestMysqlStore.flaws)


def _mongo_flaws():
    from tests.scenario.test_mongo_hostile import HARMS

    return list(HARMS)


def _spoil_sqlite(url, number, flaw):
    event = event_of(number, mark(number))
    change = f"UPDATE postroom_outbox SET {flaw} WHERE id = '{event.id}'"
    _write(url, [event], lambda world: world.run(change))


def _spoil_mongo(url, number, flaw):
    from tests.scenario.test_mongo_hostile import HARMS

    event = event_of(number, mark(number))

    def spoil(world):
        world.database["postroom_outbox"].update_one(
            {"_id": event.id}, HARMS[flaw], session=world.session, bypass_document_validation=True
        )

    _write(url, [event], spoil)


def _spoil_postgres(url, number, flaw):
    from tests.scenario.test_postgres_roles import COLUMNS, ROW

    with closing(open_world(url)) as world:
        world.connection.autocommit = True
        if not world.run("SELECT 1 FROM pg_roles WHERE rolname = %s", WRITER).fetchall():
            world.run(f"CREATE ROLE {WRITER}")
            world.run(f"GRANT INSERT ({COLUMNS}) ON postroom_outbox TO {WRITER}")
        world.run(f"SET ROLE {WRITER}")
        _insert(world, ROW, number, flaw)


def _spoil_mysql(url, number, flaw):
    from tests.scenario.test_mysql_roles import COLUMNS, ROW

    with closing(open_world(url)) as world:
        world.run(f"CREATE USER IF NOT EXISTS {WRITER}")
        world.run(f"GRANT INSERT ({COLUMNS}) ON postroom_outbox TO {WRITER}")
    with closing(open_world(url.replace("//root@", f"//{WRITER}@"))) as world:
        world.run("SET SESSION sql_mode = ''")
        _insert(world, ROW, number, flaw)
        world.commit()


def _insert(world, row, number, flaw):
    """Insert one row with the flaw `column = value, …` in it."""
    changes = dict(part.split(" = ", 1) for part in flaw.split(", ") if " = " in part)
    changes = {name: value.replace("size", row["size"]) for name, value in changes.items()}
    made = {**row, "id": f"'row-{mark(number)}'", **changes}
    world.run(
        f"INSERT INTO postroom_outbox ({', '.join(made)}) VALUES ({', '.join(made.values())})"
    )


FLAWS = {
    "sqlite": _sqlite_flaws,
    "postgresql": _postgres_flaws,
    "mysql": _mysql_flaws,
    "mongodb": _mongo_flaws,
}
SPOILERS = {
    "sqlite": _spoil_sqlite,
    "postgresql": _spoil_postgres,
    "mysql": _spoil_mysql,
    "mongodb": _spoil_mongo,
}
