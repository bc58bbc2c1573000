"""Databases as an earlier version left them: loaded from a folder of this package, and looked at from outside."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import asynccontextmanager, closing
from pathlib import Path

import psycopg
from bson import json_util
from psycopg.rows import dict_row
from pymongo import MongoClient
from pymysql.cursors import DictCursor

from postroom.model.clock import host_microseconds
from postroom.outbox import to_row
from postroom.stores.mongo import MongoStore
from postroom.stores.mysql import MysqlStore
from postroom.stores.mysql.statements import cut
from postroom.stores.postgres import PostgresStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing.store.tools import ALL
from tests.contract.mongo_database import own_url
from tests.contract.mysql_database import own_database
from tests.scenario.postgres_place import own_schema

ROOT = Path(__file__).parent
VERSIONS = sorted(path.name for path in ROOT.iterdir() if (path / "postgres").is_dir())
TABLES = ("outbox", "lease", "member", "block", "counter", "inbox", "audit", "meta")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


class Old:
    """A database of an earlier version. `text(name)` is one of the folder's files."""

    def __init__(self, version, kind):
        self.folder = ROOT / version / kind

    def text(self, name):
        return (self.folder / name).read_text(encoding="utf-8")

    def statement(self, name):
        """Return a statement of the old version for a driver with named parameters."""
        return _PARAMETER.sub(r"%(\1)s", _bare(self.text(f"{name}.sql")))

    @property
    def records(self):
        """What the old version's own `find` returned."""
        return json.loads(self.text("records.json"))

    def values_of(self, event):
        """Return what the old writer's statement needs."""
        row = to_row(event, event.topic)._asdict()
        payload = row["payload_bytes"]
        hexed = {"key_hash_hex": row["key_hash"].hex(), "payload_hex": payload and payload.hex()}
        return {**row, **hexed, "now": host_microseconds()}


class OldSqlite(Old):
    def __init__(self, version, path):
        super().__init__(version, "sqlite")
        self.path, self.url = path, f"sqlite:///{path}"

    def store(self):
        return SqliteStore(self.path)

    def load(self):
        with closing(sqlite3.connect(self.path)) as connection:
            connection.executescript(self.text("schema.sql"))
            connection.executescript(f"BEGIN;\n{self.text('data.sql')}\nCOMMIT;")

    def run(self, sql, values=()):
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql, values)]

    def rows(self, table):
        return self.run(f"SELECT * FROM postroom_{table} ORDER BY 1, 2")

    def old_writer(self, event):
        known = self.values_of(event)
        sql = self.text("insert.sql")
        self.run(sql, {name: known[name] for name in _PARAMETER.findall(_bare(sql))})

    def old_relay(self, *, done, failed):
        lanes = json.dumps([[lane, None] for lane in ALL])
        chosen = self.run(
            self.text("read_seqs.sql"),
            {"stream": "main", "lanes": lanes, "owner": None, "per_lane": 100},
        )
        seqs = [seq for row in chosen for seq in json.loads(next(iter(row.values())))]
        found = {
            row["id"]: row for row in self.run(self.text("read.sql"), {"seqs": json.dumps(seqs)})
        }
        where = {"stream": "main", "lanes": json.dumps(ALL), "now": host_microseconds()}
        names = json.dumps({found[done]["seq"]: done})
        self.run(self.text("settle_done.sql"), {**where, "names": names})
        outcome = [found[failed]["seq"], failed, 1, "from an old relay", host_microseconds()]
        self.run(self.text("settle_failed.sql"), {**where, "failed": json.dumps([outcome])})
        return set(found)


class OldPostgres(Old):
    def __init__(self, version, url):
        super().__init__(version, "postgres")
        self.url = url

    def store(self):
        return PostgresStore(self.url)

    def load(self):
        with psycopg.connect(self.url) as connection:
            connection.execute(self.text("schema.sql"))
            connection.execute(self.text("data.sql"))

    def run(self, sql, values=None):
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            cursor = connection.execute(sql, values)
            return cursor.fetchall() if cursor.description else []

    def rows(self, table):
        # as JSON: psycopg has no value for -infinity
        found = self.run(f"SELECT to_jsonb(t) AS row FROM postroom_{table} AS t ORDER BY 1")
        return [row["row"] for row in found]

    def old_writer(self, event):
        self.run(self.statement("insert"), self.values_of(event))

    def old_relay(self, *, done, failed):
        self.run("UPDATE postroom_lease SET until = now() + interval '60 s', length = '60 s'")
        leases = [row for row in self.rows("lease") if row["owner"] == "anna"]
        lanes, tokens = [r["lane"] for r in leases], [r["token"] for r in leases]
        where = {"stream": "main", "owner": "anna", "lanes": lanes, "tokens": tokens}
        proof = {"floors": None, "epoch": None}
        limits = {"per_lane": 100, "rows": 100, "size": 10**9, "exclude": None}
        found = {r["id"]: r for r in self.run(self.statement("read"), {**where, **proof, **limits})}
        one = {"seqs": [found[done]["seq"]], "ids": [done], "keep": True}
        (settled,) = self.run(self.statement("settle"), {**where, **one})
        assert settled == {"held": sorted(lanes), "unchanged": None}
        other = {"seqs": [found[failed]["seq"]], "ids": [failed], "attempts": [1], "delays": [0.0]}
        errors = {"errors": ["from an old relay"]}
        self.run(self.statement("settle_failed"), {**where, **other, **errors})
        owners = {**where, "owners": ["anna"] * len(lanes), "limit": 100}
        (staged,) = self.run(self.statement("stage"), {**owners, **proof})
        assert staged["moved"] >= 1
        return set(found)


class OldMysql(Old):
    def __init__(self, version, database):
        super().__init__(version, "mysql")
        self.database, self.url = database, database.url

    def store(self):
        return MysqlStore(self.url)

    def load(self):
        # `cut` needs texts without semicolons: all texts of the data are hexadecimal
        data = ("START TRANSACTION", *cut(self.text("data.sql")), "COMMIT")
        self.database.run(*cut(self.text("schema.sql")), *data)

    def run(self, sql, values=None):
        options = {"charset": "utf8mb4", "autocommit": True, "cursorclass": DictCursor}
        with self.database.connection(**options) as (_, cursor):
            cursor.execute(sql, values)
            return list(cursor.fetchall())

    def rows(self, table):
        return self.run(f"SELECT * FROM postroom_{table} ORDER BY 1, 2")

    def old_writer(self, event):
        self.run(self.statement("insert"), self.values_of(event))

    def old_relay(self, *, done, failed):
        lane = self.statement("read_lane").replace("{except}", "").replace("{held}", "")
        lanes = " UNION ALL ".join(
            lane.replace("{place}", str(n)).replace("{lane}", str(n)) for n in ALL
        )
        read = self.statement("read").replace("{lanes}", lanes)
        read = read.replace("{columns}", self.statement("columns"))
        limits = {"stream": "main", "per_lane": 100, "rows": 100, "size": 10**9}
        found = {r["id"].decode(): r for r in self.run(read, limits)}
        where = {"stream": "main", "lanes": ALL}
        one = {"seqs": (found[done]["seq"],), "names": ((found[done]["seq"], done),)}
        self.run(self.statement("settle_done"), {**where, **one})
        outcome = [found[failed]["seq"], failed.encode().hex(), 1, "from an old relay", 0]
        self.run(self.statement("settle_failed"), {**where, "failed": json.dumps([outcome])})
        return set(found)


class OldMongo(Old):
    def __init__(self, version, url):
        super().__init__(version, "mongo")
        self.url = url

    def store(self):
        return MongoStore(self.url)

    def _json(self, name):
        return json_util.loads(self.text(name), json_options=json_util.CANONICAL_JSON_OPTIONS)

    def _command(self, *commands):
        with MongoClient(self.url) as client:
            return [client.get_default_database().command(command) for command in commands]

    def load(self):
        with MongoClient(self.url) as client:
            database = client.get_default_database()
            client.drop_database(database.name)
            for command in self._json("schema.json"):
                database.command(command)
            for name, documents in self._json("data.json").items():
                database[name].insert_many(documents)

    def drop(self):
        with MongoClient(self.url) as client:
            client.drop_database(client.get_default_database().name)

    def rows(self, table):
        with MongoClient(self.url) as client:
            found = client.get_default_database()[f"postroom_{table}"].find().sort("_id")
            return [{**document, "_id": str(document["_id"])} for document in found]

    def old_writer(self, event):
        """Its command holds a whole event; another id is put in."""
        text = json_util.dumps(
            self._json("insert.json"), json_options=json_util.CANONICAL_JSON_OPTIONS
        )
        text = text.replace('"_id": "old-writer"', f'"_id": "{event.id}"')
        (reply,) = self._command(
            json_util.loads(text, json_options=json_util.CANONICAL_JSON_OPTIONS)
        )
        assert "writeErrors" not in reply

    def old_relay(self, *, done, failed):
        """Its commands name the events: pending-1 is done, ž-1 has failed."""
        assert (done, failed) == ("pending-1", "ž-1")
        renew = {"q": {}, "u": [{"$set": {"until": {"$add": ["$$NOW", 60_000]}}}], "multi": True}
        self._command({"update": "postroom_lease", "updates": [renew]})
        commands = self._json("relay.json")
        replies = self._command(*commands["read"], *commands["settle"])
        for reply in replies:
            assert "writeErrors" not in reply, reply
        found = [d for reply in replies if "cursor" in reply for d in reply["cursor"]["firstBatch"]]
        return {document["_id"] for document in found if isinstance(document.get("_id"), str)}


def _bare(text):
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


# -- one of each ----------------------------------------------------------------------------------
@asynccontextmanager
async def loaded(request, version, kind):
    """Yield a database that holds what an earlier version left."""
    match kind:
        case "sqlite":
            old = OldSqlite(version, request.getfixturevalue("tmp_path") / "shop.db")
            old.load()
            yield old
        case "postgres":
            with own_schema(request.getfixturevalue("postgres_url")) as url:
                old = OldPostgres(version, url)
                old.load()
                yield old
        case "mysql":
            with own_database(request.getfixturevalue("mariadb_url")) as database:
                old = OldMysql(version, database)
                old.load()
                yield old
        case _:
            old = OldMongo(version, own_url(request.getfixturevalue("mongo_url"), "upgrade"))
            old.load()
            try:
                yield old
            finally:
                old.drop()
