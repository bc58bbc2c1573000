"""SQLite: each round gets a fresh copy of a prepared file."""

import asyncio
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

from bench.grounds.events import BLOCKED, BLOCKED_LANE, PAYLOAD_TEXT, message, rows
from postroom.model.clock import host_microseconds
from postroom.stores.sqlite import SqliteStore
from postroom.transactions import resolve_sync

COLUMNS = (
    "seq, id, stream, lane, key_hash, type, topic, key, aggregate_type, aggregate_id, "
    "CAST(payload AS BLOB), content_type, headers, correlation_id, causation_path, "
    "schema_version, kseq, occurred_at, created_at, state, attempts"
)


def connect(path):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


class SqliteGround:
    name = "bare sqlite3 loop"
    version = f"SQLite {sqlite3.sqlite_version}"
    EFFECT = "INSERT INTO bench_effect (message) VALUES (?)"

    def __init__(self, folder):
        self._folder = tempfile.mkdtemp(prefix="postroom-bench-", dir=folder)
        self._prepared = {}
        self._path = os.path.join(self._folder, "round.db")

    def close(self):
        shutil.rmtree(self._folder)

    def store(self):
        return SqliteStore(Path(self._path))

    def prepare(self, name, events, keys, hot=0.0, crowd=None, number=0):
        """Make the file that the rounds of this name start from."""
        path = self._prepared[name] = os.path.join(self._folder, f"{len(self._prepared)}.db")
        asyncio.run(SqliteStore(Path(path)).migrate())
        connection = connect(path)
        if crowd:
            _crowd(connection, crowd, number)
        connection.execute("BEGIN")
        resolve_sync(connection, "postroom_").insert(list(rows(events, keys, hot)))
        connection.execute("COMMIT")
        connection.execute("CREATE TABLE bench_effect (n INTEGER PRIMARY KEY, message TEXT)")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    def reset(self, name):
        for suffix in ("", "-wal", "-shm"):
            if os.path.exists(self._path + suffix):
                os.remove(self._path + suffix)
        shutil.copy(self._prepared[name], self._path)

    def bare(self, batch, send=None):
        """The limit: read in order, send all if told to, delete in one statement, commit."""
        connection = connect(self._path)
        sent = 0
        while found := _next(connection, batch):
            if send:
                send([message(row) for row in found])
            connection.execute("BEGIN IMMEDIATE")
            marks = ",".join("?" * len(found))
            connection.execute(
                f"DELETE FROM postroom_outbox WHERE seq IN ({marks})", [row[0] for row in found]
            )
            connection.execute("COMMIT")
            sent += len(found)
        connection.close()
        return sent

    def bare_effects(self, batch, together=1):
        """The limit of handlers: so many effects and ends of their events in one transaction."""
        connection = connect(self._path)
        connection.execute("PRAGMA synchronous=FULL")  # as a handler's commit
        done = 0
        while found := _next(connection, batch):
            for first in range(0, len(found), together):
                connection.execute("BEGIN IMMEDIATE")
                for row in found[first : first + together]:
                    connection.execute(self.EFFECT, (row[1],))
                    connection.execute("DELETE FROM postroom_outbox WHERE seq = ?", (row[0],))
                connection.execute("COMMIT")
            done += len(found)
        connection.close()
        return done


def _next(connection, batch):
    return connection.execute(
        f"SELECT {COLUMNS} FROM postroom_outbox WHERE stage = 'ready' ORDER BY seq LIMIT ?",
        (batch,),
    ).fetchall()


def _crowd(connection, kind, number):
    now = host_microseconds()
    state, stage, due, settled = {
        "done": ("done", "over", None, now),
        "scheduled": ("pending", "waiting", now + 86_400_000_000, None),
        "followers": ("pending", "parked", None, None),
    }[kind]
    followers = kind == "followers"
    connection.execute("BEGIN")
    if followers:
        connection.execute(
            "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, key, payload, "
            "content_type, size, occurred_at, created_at, state, stage, attempts, next_attempt_at) "
            "VALUES ('head', ?, ?, 'b', 't', 'blocked', '{}', 'application/json', 2, ?, ?, "
            "'failed', 'waiting', 1, ?)",
            (BLOCKED_LANE, BLOCKED, now, now, now + 86_400_000_000),
        )
        connection.execute(
            "INSERT INTO postroom_block (stream, key_hash, lane, barrier, key, since) "
            "SELECT 'main', key_hash, lane, seq, key, ? FROM postroom_outbox WHERE id = 'head'",
            (now,),
        )
    connection.executemany(
        "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, key, payload, content_type, "
        "size, occurred_at, created_at, state, stage, next_attempt_at, settled_at) "
        "VALUES (?, ?, ?, 'b', 't', ?, ?, 'application/json', 200, ?, ?, ?, ?, ?, ?)",
        (
            (
                f"{kind}-{n}", BLOCKED_LANE if followers else n % 64,
                BLOCKED if followers else n.to_bytes(16, "big"),
                "blocked" if followers else f"c{n % 1000}",
                PAYLOAD_TEXT, now, now, state, stage, due, settled,
            )
            for n in range(number)
        ),
    )  # fmt: skip
    connection.execute("COMMIT")
