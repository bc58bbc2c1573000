"""The database under torture: how a producer writes to it, and what it says in the end.

Each committed transaction counts its key up and logs the event's id in business tables of its own.
These tables are the truth that the checker compares with what arrived.
"""

from __future__ import annotations

import random
import sqlite3
from contextlib import contextmanager, suppress

from postroom import Event, SyncOutbox
from postroom.url import Url

TABLES = (
    "CREATE TABLE torture_key ({key} PRIMARY KEY, n INTEGER NOT NULL)",
    "CREATE TABLE torture_log ({id} PRIMARY KEY, k {text} NOT NULL, n INTEGER NOT NULL)",
    "CREATE TABLE torture_effect ({serial}, id {text} NOT NULL, k {text} NOT NULL, n INTEGER NOT NULL)",
)


class SqlWorld:
    """Any database with a DB-API driver. Writers of a key are coordinated by its row (W8)."""

    mark = "%s"

    def __init__(self, url):
        self.url = url
        self.connection = self.connect()

    def make_tables(self, keys):
        for table in TABLES:
            self.run(table.format(**self.words))
        for key in keys:
            self.run(f"INSERT INTO torture_key VALUES ({self.mark}, 0)", key)
        self.connection.commit()

    def run(self, sql, *values):
        cursor = self.connection.cursor()
        cursor.execute(sql, values)
        return cursor

    def rows(self, sql):
        found = list(self.run(sql).fetchall())
        self.connection.commit()
        return found

    @contextmanager
    def transaction(self):
        self.begin()
        try:
            yield
            self.connection.commit()
        except BaseException:
            self.connection.rollback()
            raise

    def begin(self):
        pass

    def write(self, outbox, key, events, padding):
        """Count the key up and add its events, in the transaction that is open."""
        mark = self.mark
        made = []
        for _ in range(events):
            self.run(f"UPDATE torture_key SET n = n + 1 WHERE k = {mark}", key)
            (n,) = self.run(f"SELECT n FROM torture_key WHERE k = {mark}", key).fetchone()
            event = Event(
                "torture", {"k": key, "n": n, "padding": padding}, key=key, topic="torture"
            )
            outbox.add(self.connection, event)
            self.run(f"INSERT INTO torture_log VALUES ({mark}, {mark}, {mark})", event.id, key, n)
            made.append(event.id)
        return made

    def committed(self):
        return {i: (k, n) for i, k, n in self.rows("SELECT id, k, n FROM torture_log")}

    def effects(self):
        return self.rows("SELECT id, k, n FROM torture_effect ORDER BY at")

    def close(self):
        self.connection.close()


class SqliteWorld(SqlWorld):
    mark = "?"
    words = {"key": "k TEXT", "id": "id TEXT", "text": "TEXT", "serial": "at INTEGER PRIMARY KEY"}

    def connect(self):
        return sqlite3.connect(Url.parse(self.url).file(), timeout=30, isolation_level=None)

    def begin(self):
        self.connection.execute("BEGIN IMMEDIATE")


class PostgresWorld(SqlWorld):
    words = {"key": "k TEXT", "id": "id TEXT", "text": "TEXT", "serial": "at BIGSERIAL PRIMARY KEY"}

    def connect(self):
        import psycopg

        return psycopg.connect(self.url)


class MysqlWorld(SqlWorld):
    words = {
        "key": "k VARCHAR(64)", "id": "id VARCHAR(64)", "text": "VARCHAR(64)",
        "serial": "at BIGINT AUTO_INCREMENT PRIMARY KEY",
    }  # fmt: skip

    def connect(self):
        import pymysql

        url = Url.parse(self.url)
        return pymysql.connect(
            host=url.host, port=url.port, user=url.user or "root", password=url.password or "",
            database=url.database, charset="utf8mb4",
        )  # fmt: skip


WORLDS = {"sqlite": SqliteWorld, "postgresql": PostgresWorld, "mysql": MysqlWorld}


def open_world(url):
    return WORLDS[Url.parse(url).scheme](url)


def produce(url, seed, events, keys):
    """A producer: rolls back 15 %, sleeps within the transaction 5 %, dies in it 2 %."""
    import os
    import time

    rng = random.Random(seed)
    outbox = SyncOutbox()
    world, made = None, 0
    while made < events:
        try:
            world = world or open_world(url)
            key = f"k{min(int(rng.paretovariate(1.1)) - 1, keys - 1)}"
            count = rng.choice((1, 1, 1, 2, 3))
            padding = "x" * rng.choice(
                (10, 10, 10, 200, 2_000, 20_000 if rng.random() < 0.05 else 50)
            )
            fate = rng.random()
            with world.transaction():
                world.write(outbox, key, count, padding)
                if fate < 0.15:
                    raise RollBackError
                if fate < 0.20:
                    time.sleep(rng.uniform(0.01, 0.1))
                elif fate < 0.202:
                    os._exit(3)
            outbox.kick()
            made += count
        except RollBackError:
            continue
        except Exception:  # the database is away: what was under way is unknown, the log knows
            if world is not None:
                with suppress(Exception):
                    world.close()
                world = None
            time.sleep(0.2)


class RollBackError(Exception):
    pass
