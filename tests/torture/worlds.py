"""The database under torture: the business tables of its writers, and what it says in the end.

Each transaction counts its key up and logs its events in tables of its own. These are the truth
that the checker compares with what arrived. Triggers log, on the store's own clock, every time a
lane gets another owner or token, and for every event that becomes done whose lane it is at that
moment and, where connections have names, who wrote it.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from base64 import b64encode
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import shake_256
from typing import NamedTuple

from postroom import Event
from postroom.model.url import Url
from postroom.retry import Constant, RetryPolicy

TABLES = (
    "CREATE TABLE torture_key (k {text} PRIMARY KEY, n INTEGER NOT NULL)",
    (
        "CREATE TABLE torture_log (id {text} PRIMARY KEY, k {text} NOT NULL, n INTEGER NOT NULL, "
        "size INTEGER NOT NULL, fate {text} NOT NULL)"
    ),
    (
        "CREATE TABLE torture_effect ({serial}, id {text} NOT NULL, k {text} NOT NULL, "
        "n INTEGER NOT NULL)"
    ),
    "CREATE TABLE torture_foreign ({serial}, n INTEGER NOT NULL)",
    (
        "CREATE TABLE torture_lease ({serial}, stream {text}, lane INTEGER, token BIGINT, "
        "owner {text}, old_owner {text}, left_seconds DOUBLE PRECISION, "
        "noted DOUBLE PRECISION)"
    ),
    (
        "CREATE TABLE torture_settle ({serial}, id {text}, owner {text}, writer {text}, "
        "noted DOUBLE PRECISION)"
    ),
)
LEASE_COLUMNS = "stream, lane, token, owner, old_owner, left_seconds, noted"
SECRET = "canary-7391"  # a password that must not show in any log
MOST_PROCESSES = 400
QUICK = RetryPolicy(max_attempts=6, backoff=Constant(0.2))  # a key waits for what fails for good
GUILTY = ("oversize", "poison")  # fates that end as a dead letter
DELAYED = "delayed"  # waits for an operator, who lets it go or cancels it
MISCHIEF = (
    "swallow", "panic", "commit", "commit_and_raise", "roll_back", "roll_back_and_go_on",
    "roll_back_and_raise", "close", "hang", "own_thread",
)  # fmt: skip


class Taken(NamedTuple):
    """A lane got another owner or token; `left` is how long its lease would have lasted."""

    stream: str
    lane: int
    token: int
    owner: str | None
    before: str | None
    left: float | None
    at: float


class SettledRow(NamedTuple):
    """An event became done while its lane was `owner`'s; `writer` is '' where nobody can tell."""

    id: str
    owner: str | None
    writer: str
    at: float


class SqlWorld:
    """Any database with a DB-API driver. Writers of a key wait for its row (W8), or are strict."""

    mark = "%s"
    triggers: tuple[str, ...] = ()
    has_own_clock = True

    def __init__(self, url):
        self.url = url
        self.connection = self.connect()

    def make_tables(self, keys):
        for statement in (*TABLES, *self.triggers):
            self.run(statement.format(**self.words))
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
        """Open a transaction; the caller commits it by `commit`, else it is rolled back."""
        self.begin()
        try:
            yield
        except BaseException:
            self.connection.rollback()
            raise

    def begin(self):
        pass

    def commit(self):
        self.connection.commit()

    def write(self, outbox, key, made):
        """Count the key up and add these (id, padding, fate), in the open transaction."""
        marks = ", ".join([self.mark] * 5)
        for event_id, padding, fate in made:
            n = add_and_count(
                outbox, self.connection, lambda: self._count(key), event_id, key, padding, fate
            )
            self.run(
                f"INSERT INTO torture_log VALUES ({marks})",
                event_id, key, n, len(padding), fate,
            )  # fmt: skip

    def add_key(self, key):
        self.run(f"INSERT INTO torture_key VALUES ({self.mark}, 0)", key)

    def _count(self, key):
        self.run(f"UPDATE torture_key SET n = n + 1 WHERE k = {self.mark}", key)
        return self.run(f"SELECT n FROM torture_key WHERE k = {self.mark}", key).fetchone()[0]

    def hold_back(self):
        """Open a transaction that sees the world as it is now, and leave it open."""
        self.run("SELECT count(*) FROM torture_key")

    def is_conflict(self, error):
        """Another writer was there before, and nothing else is wrong."""
        del error
        return False

    def trace(self):
        """What a writer who dies now leaves behind: nothing, its connection closes."""
        return b""

    def known(self, ids):
        """Which of these ids are committed."""
        marks = ", ".join([self.mark] * len(ids))
        found = self.run(f"SELECT id FROM torture_log WHERE id IN ({marks})", *ids).fetchall()
        self.connection.commit()
        return {event_id for (event_id,) in found}

    def written(self):
        return self.rows("SELECT count(*) FROM torture_log")[0][0]

    def committed(self):
        """Return {id: (key, n, size, fate)}."""
        return {row[0]: tuple(row[1:]) for row in self.rows("SELECT * FROM torture_log")}

    def innocent(self):
        """How many committed events must take effect."""
        guilty = guilty_of(Url.parse(self.url).scheme)
        return self.rows(f"SELECT count(*) FROM torture_log WHERE fate NOT IN {guilty}")[0][0]

    def met(self):
        """Return the numbers of the foreign messages and rows that took effect, in order."""
        return [n for (n,) in self.rows("SELECT n FROM torture_foreign ORDER BY at")]

    def effects_written(self):
        return self.rows("SELECT count(*) FROM torture_effect")[0][0]

    def happened(self):
        """How many different events had an effect."""
        return self.rows("SELECT count(DISTINCT id) FROM torture_effect")[0][0]

    def effects(self):
        return [tuple(row) for row in self.rows("SELECT id, k, n FROM torture_effect ORDER BY at")]

    def leases(self):
        """Return what became of the lanes, in order."""
        found = self.rows(f"SELECT {LEASE_COLUMNS} FROM torture_lease ORDER BY at")
        return [Taken(*row) for row in found]

    def settled(self):
        """Return the events that became done, in order."""
        found = self.rows("SELECT id, owner, writer, noted FROM torture_settle ORDER BY at")
        return [SettledRow(*row) for row in found]

    def strangers(self):
        """How many other connections the database has; None if nobody can tell."""

    def close(self):
        self.connection.close()


class SqliteWorld(SqlWorld):
    mark = "?"
    has_own_clock = False
    words = {"text": "TEXT", "serial": "at INTEGER PRIMARY KEY"}
    triggers = (
        (
            "CREATE TRIGGER torture_lease AFTER UPDATE ON postroom_lease "
            "WHEN OLD.token <> NEW.token OR OLD.owner IS NOT NEW.owner BEGIN "
            f"INSERT INTO torture_lease ({LEASE_COLUMNS}) VALUES ("
            "NEW.stream, NEW.lane, NEW.token, NEW.owner, OLD.owner, "
            "OLD.until / 1e6 - (julianday('now') - 2440587.5) * 86400, "
            "(julianday('now') - 2440587.5) * 86400); END"
        ),
        (
            "CREATE TRIGGER torture_settle AFTER UPDATE ON postroom_outbox "
            "WHEN NEW.state = 'done' AND OLD.state <> 'done' AND NEW.stream = 'main' BEGIN "
            "INSERT INTO torture_settle (id, owner, writer, noted) "
            "SELECT NEW.id, owner, '', (julianday('now') - 2440587.5) * 86400 "
            "FROM postroom_lease WHERE stream = NEW.stream AND lane = NEW.lane; END"
        ),
    )

    def connect(self):
        return sqlite3.connect(Url.parse(self.url).file(), timeout=30, isolation_level=None)

    def begin(self):
        self.connection.execute("BEGIN IMMEDIATE")

    def hold_back(self):
        self.connection.execute("BEGIN")
        super().hold_back()


class PostgresWorld(SqlWorld):
    words = {"text": "TEXT", "serial": "at BIGSERIAL PRIMARY KEY"}
    triggers = (
        (
            "CREATE FUNCTION torture_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"INSERT INTO torture_lease ({LEASE_COLUMNS}) VALUES ("
            "NEW.stream, NEW.lane, NEW.token, NEW.owner, OLD.owner, "
            "date_part('epoch', greatest(OLD.until, '1970-01-01') - clock_timestamp()), "
            "date_part('epoch', clock_timestamp())); RETURN NEW; END $$"
        ),
        (
            "CREATE TRIGGER torture_lease AFTER UPDATE ON postroom_lease FOR EACH ROW "
            "WHEN (OLD.token <> NEW.token OR OLD.owner IS DISTINCT FROM NEW.owner) "
            "EXECUTE FUNCTION torture_lease()"
        ),
        (
            "CREATE FUNCTION torture_settle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "INSERT INTO torture_settle (id, owner, writer, noted) "
            "SELECT NEW.id, owner, current_setting('application_name'), "
            "date_part('epoch', clock_timestamp()) "
            "FROM postroom_lease WHERE stream = NEW.stream AND lane = NEW.lane; "
            "RETURN NEW; END $$"
        ),
        (
            "CREATE TRIGGER torture_settle AFTER UPDATE ON postroom_outbox FOR EACH ROW "
            "WHEN (NEW.state = 'done' AND OLD.state <> 'done' AND NEW.stream = 'main') "
            "EXECUTE FUNCTION torture_settle()"
        ),
    )

    def connect(self):
        import psycopg

        return psycopg.connect(self.url)

    def hold_back(self):
        self.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.run("SELECT txid_current()")  # what was committed later may not be cleared away now
        super().hold_back()

    def strangers(self):
        others = "FROM pg_stat_activity WHERE datname = current_database() "
        return self.rows(f"SELECT count(*) {others} AND pid <> pg_backend_pid()")[0][0]

    def kill_backend(self):
        """Kill the process of another connection: the server ends them all, and recovers."""
        others = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY random()"
        )
        if found := self.rows(others):
            os.kill(found[0][0], signal.SIGKILL)
        return bool(found)

    def lock_lane(self, lane):
        self.run(f"SELECT 1 FROM postroom_lease WHERE stream = 'main' AND lane = {lane} FOR UPDATE")

    def lock_members(self):
        """Let no heartbeat through; everything else works."""
        self.run("LOCK TABLE postroom_member IN EXCLUSIVE MODE")

    def terminate_others(self):
        """End other connections of this database, as an administrator does."""
        self.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


class MysqlWorld(SqlWorld):
    words = {"text": "VARCHAR(100)", "serial": "at BIGINT AUTO_INCREMENT PRIMARY KEY"}
    triggers = (
        (
            "CREATE TRIGGER torture_lease AFTER UPDATE ON postroom_lease FOR EACH ROW "
            "IF OLD.token <> NEW.token OR NOT (OLD.owner <=> NEW.owner) THEN "
            f"INSERT INTO torture_lease ({LEASE_COLUMNS}) VALUES ("
            "NEW.stream, NEW.lane, NEW.token, NEW.owner, OLD.owner, "
            "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), OLD.until) / 1e6, "
            "UNIX_TIMESTAMP(NOW(6))); END IF"
        ),
        (
            "CREATE TRIGGER torture_settle AFTER UPDATE ON postroom_outbox FOR EACH ROW "
            "IF NEW.state = 'done' AND OLD.state <> 'done' AND NEW.stream = 'main' THEN "
            "INSERT INTO torture_settle (id, owner, writer, noted) "
            "SELECT NEW.id, owner, SUBSTRING_INDEX(USER(), '@', 1), UNIX_TIMESTAMP(NOW(6)) "
            "FROM postroom_lease WHERE stream = NEW.stream AND lane = NEW.lane; END IF"
        ),
    )

    def make_tables(self, keys):
        super().make_tables(keys)
        names = [
            f"'{kind}-{n}'@'%%'" for kind in ("relay", "consumer") for n in range(MOST_PROCESSES)
        ]
        self.run("CREATE USER " + ", ".join(f"{name} IDENTIFIED BY %s" for name in names),
                 *[SECRET] * len(names))  # fmt: skip
        self.run("GRANT ALL ON *.* TO " + ", ".join(names), *())

    def connect(self):
        import pymysql

        url = Url.parse(self.url)
        return pymysql.connect(
            host=url.host, port=url.port, user=url.user or "root", password=url.password or "",
            database=url.database, charset="utf8mb4",
        )  # fmt: skip

    def strangers(self):
        others = "FROM information_schema.processlist WHERE db = database() "
        return self.rows(f"SELECT count(*) {others} AND id <> connection_id()")[0][0]

    def lock_lane(self, lane):
        self.run(f"SELECT 1 FROM postroom_lease WHERE stream = 'main' AND lane = {lane} FOR UPDATE")

    def lock_members(self):
        self.run("LOCK TABLES postroom_member READ")

    def terminate_others(self):
        for (number,) in self.rows(
            "SELECT id FROM information_schema.processlist "
            "WHERE id <> connection_id() AND db = database()"
        ):
            with suppress(Exception):  # it has gone by itself
                self.run(f"KILL {number}")


WORLDS = {"sqlite": SqliteWorld, "postgresql": PostgresWorld, "mysql": MysqlWorld}


def is_strict(key):
    """Every other key is numbered by the outbox, whose lock alone coordinates its writers (W9)."""
    return int(key[1:]) % 2 == 1


def add_and_count(outbox, tx, count, event_id, key, padding, fate):
    """Add one event and count its key up; returns the number of the event."""
    if is_strict(key):  # what arrives must bear the number that is counted here, behind the lock
        outbox.add(tx, event_of(event_id, key, None, padding, fate))
        return count()
    n = count()
    outbox.add(tx, event_of(event_id, key, n, padding, fate))
    return n


def padding_of(event_id, size):
    """Return what an event of this size carries: nobody else's, and hard to compress."""
    return b64encode(shake_256(event_id.encode()).digest(size))[:size].decode()


def size_of(event_id, padding):
    """Return how much of its padding an event has; -1 if it is not its own."""
    return len(padding) if padding == padding_of(event_id, len(padding)) else -1


def number_of(data, kseq):
    """Return the number of an event: its own, or the one that the outbox gave it."""
    return int(kseq) if data["n"] is None else data["n"]


def event_of(event_id, key, n, padding, fate):
    data = {"k": key, "n": n, "padding": padding}
    kind = fate if fate in ("poison", "shaky", *MISCHIEF) else "torture"
    later = datetime.now(UTC) + timedelta(hours=1) if fate == DELAYED else None
    return Event(kind, data, id=event_id, key=key, topic="torture", available_at=later)


def guilty_of(scheme):
    """Return all fates that end as a dead letter on this database."""
    from tests.torture.mischief import end_of

    return *GUILTY, *(fate for fate in MISCHIEF if end_of(fate, scheme) == "dead")


def open_world(url):
    scheme = Url.parse(url).scheme
    if scheme == "mongodb":
        from tests.torture.mongo_world import MongoWorld

        return MongoWorld(url)
    return WORLDS[scheme](url)
