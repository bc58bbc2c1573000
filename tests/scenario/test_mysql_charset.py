"""T-A1: servers that impose a character set of their own change nothing of what is sent."""

from __future__ import annotations

import asyncmy
import pymysql
import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import TransactionError
from postroom.event import Event
from postroom.inbox import Inbox
from postroom.outbox import Outbox, SyncOutbox
from postroom.stores.mysql import MysqlStore, checks
from tests.contract.mysql_database import own_database
from tests.scenario.place import QUICK, until

SERVERS = {
    "utf8mb3": [
        "--character-set-server=utf8mb3",
        "--collation-server=utf8mb3_general_ci",
        "--skip-character-set-client-handshake",
        "--init-connect=SET NAMES utf8",
    ],
    "latin1": [
        "--character-set-server=latin1",
        "--collation-server=latin1_swedish_ci",
        "--skip-character-set-client-handshake",
    ],
}
EVENTS = [
    Event(
        "заказ.создан", {"n": "🦊"}, id=f"post-1:{sign}", key=f"ключ-{sign}", topic="тема",
        aggregate_type="Ж🦊", headers={"имя": sign}, correlation_id=sign,
        causation_path=[("модуль", sign)],
    )
    for sign in "🦊🐻🐼"
]  # fmt: skip


@pytest.fixture(params=SERVERS)
def imposed(request):
    return request.param


@pytest.fixture
def database(own_server, imposed):
    """A database of a user without SUPER: for such a one init_connect counts."""
    server = own_server("mariadb", arguments=SERVERS[imposed])
    with own_database(server.url) as database:
        database.run(
            "CREATE USER app IDENTIFIED BY 'secret'",
            f"GRANT ALL ON {database.name}.* TO app",
        )
        database.url = database.url.replace("root@", "app:secret@")
        database.arguments |= {"user": "app", "password": "secret"}
        yield database


async def test_a_server_with_its_own_character_set_changes_nothing(database, imposed):
    async with database.store() as store:
        # PyMySQL sends SET NAMES by itself, so that it stores the truth.
        with pymysql.connect(**database.arguments) as conn:
            SyncOutbox().add_many(conn, EVENTS)
            conn.commit()
        broker = MemoryBroker()
        async with Relay(database.url, broker, **QUICK) as relay:
            await until(lambda: relay.counts.done == len(EVENTS))
        records = sorted(message.record for message in broker.messages)
        for event, record in zip(EVENTS, records, strict=True):
            for name in ("id", "type", "topic", "key", "aggregate_type", "correlation_id"):
                assert getattr(record, name) == getattr(event, name)
            assert record.headers == event.headers
            assert record.causation_path == event.causation_path
            assert record.data == {"n": "🦊"}
        # So an inbox takes them for the three that they are, on a handler's connection.
        new = []
        for record in records:
            async with store.transaction() as tx:
                new.append(await Inbox("billing").accept(tx, record))
        assert new == [True, True, True]

        await writers_are_refused_or_write_the_truth(database, store, imposed)

        (found,) = [one for one in await checks.examine(store) if one.level != "info"]
        assert found.what == (
            f"the server uses {imposed} although the driver asks for utf8mb4 when it connects"
        )


async def writers_are_refused_or_write_the_truth(database, store, imposed):
    async with database.writing() as conn:  # asyncmy, as it is
        for call in (
            Outbox().add(conn, Event("t", id="w-1:🦊")),
            Outbox(ordering="strict").add(conn, Event("t", id="w-2:🦊", key="k")),
            Inbox("c").accept(conn, Event("t", id="w-3:🦊")),
        ):
            with pytest.raises(TransactionError, match=f"{imposed}.*init_command='SET NAMES utf8"):
                await call
        await conn.query("SET NAMES utf8mb4")  # the answer is asked for again until it is right
        await Outbox().add(conn, Event("t", id="w-4:🦊"))
    conn = await asyncmy.connect(**database.arguments, init_command="SET NAMES utf8mb4")
    await Outbox().add(conn, Event("t", id="w-5:🦊"))
    await conn.commit()
    await conn.ensure_closed()

    url = database.url.replace("mysql:", "mysql+asyncmy:")  # SQLAlchemy sends SET NAMES by itself
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.begin() as sa:
        await Outbox().add(sa, Event("t", id="w-6:🦊"))
    await engine.dispose()

    async with store.transaction() as tx:
        await Outbox().add(tx, Event("t", id="w-8:🦊"))
    with store.sync_transaction() as tx:
        SyncOutbox().add(tx, Event("t", id="w-9:🦊"))
    written = [row[0].decode() for row in database.run("SELECT id FROM postroom_outbox")]
    assert sorted(i for i in written if i.startswith("w")) == [f"w-{n}:🦊" for n in (4, 5, 6, 8, 9)]


async def test_the_server_is_asked_once_a_session(mariadb_url):
    with own_database(mariadb_url) as database:
        await MysqlStore(database.url).migrate()
        async with database.writing() as conn:
            await Outbox().add(conn, Event("t"))
            first = await questions(conn)
            for _ in range(3):
                await Outbox().add(conn, Event("t"))
            assert await questions(conn) - first == 3 + 1  # the last one is the question itself


async def test_a_connection_that_was_opened_again_is_asked_again(mariadb_url):
    with own_database(mariadb_url) as database:
        await MysqlStore(database.url).migrate()
        with pymysql.connect(**database.arguments) as conn:
            SyncOutbox().add(conn, Event("t"))
            conn.commit()
            conn.close()
            conn.connect()
            with conn.cursor() as cursor:
                cursor.execute("SET NAMES latin1")  # as init_connect would
            with pytest.raises(TransactionError, match=r"latin1.*init_command='SET NAMES utf8"):
                SyncOutbox().add(conn, Event("t", "🦊"))


async def questions(conn):
    async with conn.cursor() as cursor:
        await cursor.execute("SHOW SESSION STATUS LIKE 'Questions'")
        ((_, count),) = await cursor.fetchall()
    return int(count)
