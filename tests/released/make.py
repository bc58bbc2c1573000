"""Write what this version leaves in each database: schema, data, the statements of writers and relays.

    POSTROOM_TEST_POSTGRES_URL=… POSTROOM_TEST_MARIADB_URL=… POSTROOM_TEST_MONGO_URL=… \
        python -m tests.released.make 1.0

Run it for each release whose schema is new, from the release's own commit, and keep the folder. For an older commit
put its `src` first on the PYTHONPATH. The folder `0.0` is the schema before the first release.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from bson import json_util
from psycopg import sql
from pymongo import AsyncMongoClient, MongoClient, monitoring

from postroom.event import Event
from postroom.inbox import Inbox
from postroom.lookup import Filter
from postroom.outbox import Outbox, to_row
from postroom.record import Record
from postroom.settlement import FailedOutcome
from postroom.store import Member
from postroom.stores.mongo import MongoStore
from postroom.stores.mysql import MysqlStore
from postroom.stores.postgres import PostgresStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing.store.tools import Hand
from postroom.testing.transaction_tools import Note
from postroom.transactions.mongo.documents import CLUSTER_TIME, upsert_of
from tests.contract.mongo_database import url_of
from tests.contract.mysql_database import own_database
from tests.scenario.postgres_place import own_schema

ROOT = Path(__file__).parent
TABLES = ("outbox", "lease", "member", "block", "counter", "inbox", "audit", "meta")
FAR = datetime(2200, 1, 1, tzinfo=UTC)
RELAY = {  # the statements of a relay that the tests run again, where they are not functions or commands
    "sqlite": ("read_seqs", "read", "settle_done", "settle_failed"),
    "mysql": ("columns", "read", "read_lane", "settle_done", "settle_failed"),
    "postgres": ("read", "settle", "stage", "settle_failed"),
}
WRITER = {"sqlite": "sqlite", "mysql": "mysql", "postgres": "postgresql"}


def event(name, key=None, **more):
    return Event("order.changed", {"name": name}, id=name, key=key, topic="orders", **more)


async def fill(store):
    """Leave events in every state, and something in every table."""
    keyed, strict = Outbox(), Outbox(ordering="strict")
    await store.open()
    async with store.transaction() as tx:
        await strict.add_many(tx, [event(f"strict-{n}", "s") for n in (1, 2, 3)])
        await keyed.add_many(
            tx,
            [
                event("head", "blocked", aggregate_type="order", aggregate_id="7"),
                event("follower-1", "blocked", aggregate_type="order", aggregate_id="7"),
                event("follower-2", "blocked", aggregate_type="order", aggregate_id="7"),
                event("dead", "d"),
                event("processing", "p"),
                event("pending-1", "k", headers={"h": "é"}, correlation_id="c-1"),
                Event("raw", b"\xff\x00'\\", id="bytes", topic="orders", schema_version=3),
                Event("text", {"t": "ключ 🦊 \x00 '\" \\"}, id="ž-1", key="ключ", topic="orders"),
                event("pending-2", "k", causation_path=(("shop", "order.changed"),)),
                event("scheduled", "later", available_at=FAR),
            ],
        )
        await Inbox("payments").accept(tx, Note("m-1", "paid", "c-1"))
        await Inbox("mail").accept(tx, Note("m-1"))
    hand = await Hand(store).take(lease_seconds=60.0)
    await store.heartbeat("main", Member("anna", True, "relay-1"), 60.0, hand.held)
    found = {record.id: record for record in await hand.read()}
    await hand.settle(
        done=[found["strict-1"], found["strict-2"]], failed=[FailedOutcome(found["head"], 2, 0.001, "boom: é")]
    )  # fmt: skip
    await hand.settle(parked=[found["follower-1"], found["follower-2"]])
    await hand.bury(found["dead"])
    await hand.settle(starts=[found["processing"]])
    async with store.transaction() as tx:
        await keyed.add(tx, event("by-hand", "b"))
    assert await store.bury(["by-hand"], "not wanted", by="ops") == 1
    records = await store.find(Filter(limit=100))
    expected = [as_json(record) for record in records]
    await store.close()
    return expected


def as_json(record):
    """Return a record as plain values; bytes in hexadecimal."""
    return {
        name: value.hex() if isinstance(value, bytes) else value
        for name, value in zip(Record._fields, record, strict=True)
    }


# -- data as text ---------------------------------------------------------------------------------
def postgres_data(url):
    lines = []
    with psycopg.connect(url) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        for table in TABLES:
            name = f"postroom_{table}"
            cursor = connection.execute(
                sql.SQL("SELECT * FROM {} LIMIT 0").format(sql.Identifier(name))
            )
            columns = [column.name for column in cursor.description]
            texts = ", ".join(f"quote_nullable({column}::text)" for column in columns)
            for row in connection.execute(f"SELECT {texts} FROM {name} ORDER BY 1, 2"):
                lines.append(
                    f"INSERT INTO {name} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE VALUES ({', '.join(row)});"
                )
        for name, column in (("postroom_outbox", "seq"), ("postroom_audit", "n")):
            sequence = f"pg_get_serial_sequence('{name}', '{column}')"
            lines.append(f"SELECT setval({sequence}, (SELECT max({column}) FROM {name}));")
    return lines


def mysql_data(database):
    lines = []
    for table in TABLES:
        name = f"postroom_{table}"
        columns = [
            column
            for (column, extra) in database.run(
                "SELECT column_name, extra FROM information_schema.columns WHERE table_schema = DATABASE() "
                f"AND table_name = '{name}' ORDER BY ordinal_position"
            )
            if "GENERATED" not in extra.upper()
        ]
        quoted = ", ".join(f"`{column}`" for column in columns)
        for row in database.run("SET NAMES utf8mb4", f"SELECT {quoted} FROM {name} ORDER BY 1, 2"):
            values = ", ".join(map(mysql_literal, row))
            lines.append(f"INSERT INTO {name} ({quoted}) VALUES ({values});")
    return lines


def mysql_literal(value):
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, datetime):
        return f"'{value.isoformat(' ', 'microseconds')}'"
    return f"_utf8mb4 x'{value.encode().hex()}'"


def sqlite_data(path):
    with closing(sqlite3.connect(path)) as connection:
        return [line for line in connection.iterdump() if line.startswith(("INSERT", "DELETE"))]


def mongo_data(url):
    with MongoClient(url) as client:
        database = client.get_default_database()
        found = {
            f"postroom_{name}": list(database[f"postroom_{name}"].find().sort("_id"))
            for name in TABLES
        }
    return json_util.dumps(
        found, json_options=json_util.CANONICAL_JSON_OPTIONS, indent=1, ensure_ascii=False
    )


# -- the folder -----------------------------------------------------------------------------------
def write(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text.rstrip() + "\n", encoding="utf-8")


def write_sql(folder, store, lines, expected):
    code = files("postroom")
    steps = sorted((code / "stores" / store / "migrations").iterdir(), key=lambda file: file.name)
    write(folder, "schema.sql", "\n".join(f.read_text() for f in steps if f.name.endswith(".sql")))
    write(folder, "data.sql", "\n".join(lines))
    for name in RELAY[store]:
        write(
            folder, f"{name}.sql", (code / "stores" / store / "queries" / f"{name}.sql").read_text()
        )
    insert = code / "transactions" / "queries" / WRITER[store] / "insert.sql"
    write(folder, "insert.sql", insert.read_text())
    write(folder, "records.json", json.dumps(expected, indent=1, ensure_ascii=False))


class Commands(monitoring.CommandListener):
    """What a relay asks MongoDB for, without what belongs to its session."""

    names = ("aggregate", "find", "update", "delete")
    session = (
        "lsid",
        "txnNumber",
        "$db",
        "$clusterTime",
        "startTransaction",
        "autocommit",
        "readConcern",
    )

    def __init__(self):
        self.heard = None

    def started(self, event):
        if self.heard is not None and event.command_name in self.names:
            command = dict(event.command)
            self.heard.append({n: v for n, v in command.items() if n not in self.session})

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


async def mongo_relay(url, listener):
    """Return the commands of a read, and of a settle with one event done and one failed."""
    store = MongoStore(url)
    await store.open()
    hand = Hand(store)
    hand.held = {lease.lane: lease.token for lease in (await store.leases("main")).leases}
    listener.heard = read = []
    found = {record.id: record for record in await hand.read()}
    listener.heard = settle = []
    failed = FailedOutcome(found["ž-1"], 1, 0.0, "from an old relay")
    assert await hand.settle(done=[found["pending-1"]], failed=[failed])
    listener.heard = None
    await store.close()
    found = {"read": read, "settle": settle}
    return json_util.dumps(
        found, json_options=json_util.CANONICAL_JSON_OPTIONS, indent=1, ensure_ascii=False
    )


def write_mongo(folder, data, relay, expected):
    code = files("postroom") / "stores" / "mongo" / "migrations"
    steps = sorted(
        (f for f in code.iterdir() if f.name.endswith(".json")), key=lambda file: file.name
    )
    commands = [command for file in steps for command in json.loads(file.read_text())]
    write(folder, "schema.json", json.dumps(commands, indent=1))
    write(folder, "data.json", data)
    write(folder, "relay.json", relay)
    upsert = upsert_of(to_row(event("old-writer", "k"), "orders"), CLUSTER_TIME, 1)
    command = {
        "update": "postroom_outbox", "updates": [{"q": upsert._filter, "u": upsert._doc, "upsert": True}],
    }  # fmt: skip
    text = json_util.dumps(command, json_options=json_util.CANONICAL_JSON_OPTIONS, indent=1)
    write(folder, "insert.json", text)
    write(folder, "records.json", json.dumps(expected, indent=1, ensure_ascii=False))


async def main(name):
    folder = ROOT / name
    with TemporaryDirectory() as place:
        path = Path(place, "shop.db")
        await (store := SqliteStore(path)).migrate()
        expected = await fill(store)
        write_sql(folder / "sqlite", "sqlite", sqlite_data(path), expected)
    with own_schema(os.environ["POSTROOM_TEST_POSTGRES_URL"]) as url:
        await (store := PostgresStore(url)).migrate()
        expected = await fill(store)
        write_sql(folder / "postgres", "postgres", postgres_data(url), expected)
    with own_database(os.environ["POSTROOM_TEST_MARIADB_URL"]) as database:
        await (store := MysqlStore(database.url)).migrate()
        expected = await fill(store)
        write_sql(folder / "mysql", "mysql", mysql_data(database), expected)
    url = url_of(os.environ["POSTROOM_TEST_MONGO_URL"], "postroom_released")
    monitoring.register(listener := Commands())
    async with AsyncMongoClient(url) as client:
        await client.drop_database("postroom_released")
        try:
            await (store := MongoStore(url)).migrate()
            expected = await fill(store)
            data = mongo_data(url)
            write_mongo(folder / "mongo", data, await mongo_relay(url, listener), expected)
        finally:
            await client.drop_database("postroom_released")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
