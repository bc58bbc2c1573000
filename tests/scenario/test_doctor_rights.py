"""What the doctor says of users that may do more than they need."""

from __future__ import annotations

from uuid import uuid4

import psycopg
import pymongo
import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.stores.mongo import MongoStore
from postroom.stores.mongo import checks as mongo_checks
from postroom.stores.mysql import MysqlStore
from postroom.stores.mysql import checks as mysql_checks
from postroom.stores.postgres import checks as postgres_checks
from tests.contract.mongo_database import url_of
from tests.contract.mysql_database import own_database
from tests.scenario.postgres_place import opened, own_schema
from tests.scenario.test_postgres_roles import RELAY

CHANGE = "SELECT, INSERT, UPDATE, DELETE"
MYSQL_RELAY = {
    "outbox": CHANGE, "lease": CHANGE, "member": CHANGE, "block": CHANGE, "control": CHANGE,
    "counter": "SELECT, INSERT, UPDATE", "audit": "SELECT, INSERT", "meta": "SELECT",
}  # fmt: skip


def told(findings):
    assert all(one.why and one.fix for one in findings)
    return [(one.level, one.what) for one in findings]


# -- PostgreSQL -------------------------------------------------------------------------------
async def test_roles_of_postgresql(postgres_url):
    name = f"r_{uuid4().hex[:12]}"
    with own_schema(postgres_url) as url, psycopg.connect(postgres_url, autocommit=True) as server:
        schema = url.rpartition("%3D")[2]

        async def rights(as_role):
            async with opened(url.replace("postgres@", f"{as_role}@"), migrate=False) as store:
                return told(await postgres_checks.examine_rights(store))

        async with opened(url):
            pass
        assert await rights("postgres") == [
            ("info", "postgres is a superuser; a relay only needs access to rows")
        ]
        server.execute(f"CREATE ROLE {name} LOGIN")
        try:
            server.execute(RELAY.format(schema=schema, role=name))
            assert await rights(name) == []
            own = url.replace("postgres@", f"{name}@")
            async with opened(own, migrate=False) as store:  # these are enough for a look, too
                assert await postgres_checks.examine(store) == []
            server.execute(f"ALTER ROLE {name} CREATEROLE")
            assert await rights(name) == [
                ("warning", f"{name} may create roles or databases, or bypass row security")
            ]
            server.execute(f"ALTER ROLE {name} NOCREATEROLE")
            server.execute(f"ALTER TABLE {schema}.postroom_outbox OWNER TO {name}")
            assert await rights(name) == [
                ("info", f"{name} owns the tables: migrations need that, a relay does not")
            ]
            server.execute(f"ALTER TABLE {schema}.postroom_outbox OWNER TO postgres")
            server.execute(f"GRANT {CHANGE} ON {schema}.postroom_outbox TO {name}")
            server.execute(f"GRANT SELECT, DELETE ON {schema}.postroom_outbox TO PUBLIC")
            assert await rights(name) == [
                ("warning", "PUBLIC has DELETE, SELECT on the outbox table")
            ]
        finally:
            server.execute(f"DROP OWNED BY {name}")
            server.execute(f"DROP ROLE {name}")


# -- MySQL and MariaDB ------------------------------------------------------------------------
async def test_users_of_mariadb(mariadb_url):
    name = f"r_{uuid4().hex[:12]}"
    with own_database(mariadb_url) as database:
        await MysqlStore(database.url).migrate()

        async def rights(url):
            store = MysqlStore(url)
            await store.open()
            try:
                return told(await mysql_checks.examine_rights(store))
            finally:
                await store.close()

        ((level, what),) = await rights(database.url)
        assert level == "warning"
        assert what.startswith("this user has rights on all databases: ALL PRIVILEGES")

        own = database.url.replace("//root@", f"//{name}:secret@")
        assert own != database.url
        database.run(f"CREATE USER {name} IDENTIFIED BY 'secret'")
        try:
            for table, grant in MYSQL_RELAY.items():
                database.run(f"GRANT {grant} ON {database.name}.postroom_{table} TO {name}")
            assert await rights(own) == []
            store = MysqlStore(own)
            await store.open()
            found = told(await mysql_checks.examine(store))
            assert found == [("info", "cannot look for open transactions")]
            await store.close()
            await delivers(database.url, own)
            database.run(f"GRANT DROP, CREATE ON {database.name}.* TO {name}")
            assert await rights(own) == [
                ("info", "this user has more rights than a relay needs: CREATE, DROP")
            ]
            database.run(f"GRANT FILE, PROCESS ON *.* TO {name}")
            assert await rights(own) == [("warning", "this user has rights on all databases: FILE")]
        finally:
            database.run(f"DROP USER {name}")


async def delivers(admin_url, url):
    """The rights that are written down are enough for a relay, and for a person's replay."""
    admin = MysqlStore(admin_url)
    await admin.open()
    async with admin.transaction() as tx:
        await Outbox().add_many(tx, [Event("e", n, id=f"e{n}", key="k") for n in range(3)])
    await admin.close()
    broker = MemoryBroker()
    relay = Relay(url, broker)
    await relay.drain()
    assert [message.record.id for message in broker.messages] == ["e0", "e1", "e2"]
    store = MysqlStore(url)
    await store.open()
    assert await store.replay(["e1"], by="anna") == 1
    await store.close()


# -- MongoDB ----------------------------------------------------------------------------------
async def test_users_of_mongodb(mongo_url):
    database = f"rights_{uuid4().hex[:12]}"
    url = url_of(mongo_url, database)
    store = MongoStore(url)
    await store.migrate()

    async def rights(url):
        store = MongoStore(url)
        await store.open()
        try:
            return told(await mongo_checks.examine_rights(store))
        finally:
            await store.close()

    assert await rights(url) == [("info", "this connection is not authenticated")]
    with pymongo.MongoClient(url) as client:
        for name, roles, expected in (
            ("relay", ["readWrite"], []),
            ("owner", ["readWrite", "dbOwner"],
             [("info", "this user has more rights than a relay needs: dbOwner")]),
            ("admin", [{"role": "root", "db": "admin"}],
             [("warning", "this user has rights on all databases: root")]),
        ):  # fmt: skip
            client[database].command("createUser", name, pwd="secret", roles=roles)
            assert await rights(url.replace("//", f"//{name}:secret@")) == expected
            client[database].command("dropUser", name)
        client.drop_database(database)


@pytest.mark.parametrize(
    ("grants", "expected"),
    [
        (["GRANT USAGE ON *.* TO `r`@`%`", "GRANT SELECT, INSERT ON `d`.`t` TO `r`@`%`"], []),
        (["GRANT SELECT (id, seq), UPDATE ON `d`.* TO `r`@`%`"], []),
        (["GRANT PROXY ON ''@'%' TO 'root'@'localhost' WITH GRANT OPTION", "GRANT `role` TO `r`@`%`"],
         ["info"]),
        (["GRANT ALL PRIVILEGES ON `d`.* TO `r`@`%`"], ["info"]),
        (["GRANT SELECT, RELOAD ON *.* TO `r`@`%`"], ["warning"]),
    ],
)  # fmt: skip
def test_grants_as_servers_write_them(grants, expected):
    assert [one.level for one in mysql_checks.judge_rights(grants)] == expected
