"""What `add` costs in a business transaction, beside an INSERT of the same row written by hand.

    python -m bench.add                              sqlite3
    python -m bench.add --postgres postgres          and psycopg, psycopg async and asyncpg, on a
                                                     PostgreSQL of its own; or a URL
    python -m bench.add --mysql mariadb              and PyMySQL and asyncmy, the same way

Each transaction inserts one row of the business and then the event, by hand or by `add`, in turns.
The writer by hand makes an id, encodes the payload and hashes the key, as anybody must. `statement`
is the time of the event alone, `transaction` that of everything from BEGIN to COMMIT; the table
shows medians, and what `add` costs as a multiple of the writer by hand.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from hashlib import md5
from pathlib import Path
from uuid import uuid4

from bench.rounds import say
from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox
from tests.contract.database import MariadbDatabase, PostgresDatabase

PAYLOAD = {"order": 4711, "total": 129.9, "items": ["a", "b", "c"], "note": "x" * 120}
COLUMNS = (
    "id, lane, key_hash, type, topic, key, payload, content_type, size, occurred_at, created_at"
)
SERVER = "INSERT INTO postroom_outbox ({columns}) VALUES ({marks}, {now})"
ORDER = "INSERT INTO orders (name) VALUES ({mark})"


def by_hand(n):
    """The values of a row, as a careful person would make them."""
    key = f"order-{n % 1000}"
    payload = json.dumps(PAYLOAD)
    hashed = md5(b"\x00" + key.encode(), usedforsecurity=False).digest()
    return (
        str(uuid4()), hashed[0] % 64, hashed, "order.created", "orders", key, payload,
        "application/json", len(payload), datetime.now(UTC),
    )  # fmt: skip


def event(n):
    return Event("order.created", PAYLOAD, key=f"order-{n % 1000}", topic="orders")


class Sync:
    """One driver without a loop; times are (statement, transaction) in seconds."""

    def __init__(self, conn, run, insert, order, begin=None):
        self.conn, self.run, self.begin = conn, run, begin
        self.insert, self.order = insert, order
        self.outbox = SyncOutbox()

    async def hand(self, n):
        return self.timed(n, lambda: self.run(self.insert, by_hand(n)))

    async def add(self, n):
        return self.timed(n, lambda: self.outbox.add(self.conn, event(n)))

    def timed(self, n, work):
        began = time.perf_counter()
        if self.begin:
            self.run(self.begin, ())
        self.run(self.order, (f"o{n}",))
        before = time.perf_counter()
        work()
        after = time.perf_counter()
        self.conn.commit()
        return after - before, time.perf_counter() - began

    async def close(self):
        self.conn.close()


class Async:
    def __init__(self, conn, run, insert, order, commit, begin=None):
        self.conn, self.run, self.begin, self.commit = conn, run, begin, commit
        self.insert, self.order = insert, order
        self.outbox = Outbox()

    async def hand(self, n):
        return await self.timed(n, lambda: self.run(self.insert, by_hand(n)))

    async def add(self, n):
        return await self.timed(n, lambda: self.outbox.add(self.conn, event(n)))

    async def timed(self, n, work):
        began = time.perf_counter()
        if self.begin:
            await self.begin()
        await self.run(self.order, (f"o{n}",))
        before = time.perf_counter()
        await work()
        after = time.perf_counter()
        await self.commit()
        return after - before, time.perf_counter() - began

    async def close(self):
        closed = self.conn.close()
        if closed is not None:
            await closed


def statements(mark, now, columns=COLUMNS):
    marks = ", ".join(mark(n + 1) for n in range(10))
    return SERVER.format(columns=columns, marks=marks, now=now), ORDER.format(mark=mark(1))


async def sqlite_contest(folder):
    path = os.path.join(folder, "add.db")
    from postroom.stores.sqlite import SqliteStore

    await SqliteStore(Path(path)).migrate()
    conn = sqlite3.connect(path)
    conn.execute("CREATE TABLE orders (name TEXT)")
    insert, order = statements(lambda _: "?", "1700000000000000")

    def run(sql, values):
        if len(values) > 1:
            values = (*values[:-1], int(values[-1].timestamp() * 1_000_000))
        conn.execute(sql, values)

    return {"sqlite3": Sync(conn, run, insert, order)}


async def postgres_contests(database):
    import asyncpg
    import psycopg

    url = database.url
    insert, order = statements(lambda _: "%s", "now()")
    conn = psycopg.connect(url)
    aconn = await psycopg.AsyncConnection.connect(url)
    numbered = statements(lambda n: f"${n}", "now()")
    pg = await asyncpg.connect(**database.arguments)
    return {
        "psycopg": Sync(conn, conn.execute, insert, order),
        "psycopg async": Async(aconn, aconn.execute, insert, order, aconn.commit),
        "asyncpg": Async(
            pg, lambda sql, values: pg.execute(sql, *values), *numbered,
            lambda: pg.execute("COMMIT"), lambda: pg.execute("BEGIN"),
        ),
    }  # fmt: skip


async def mysql_contests(database):
    import asyncmy
    import pymysql

    insert, order = statements(
        lambda _: "%s", "UTC_TIMESTAMP(6)", COLUMNS.replace(" key,", " `key`,")
    )
    insert = insert.replace("(%s, %s, %s,", "(%s, %s, _binary %s,", 1)
    conn = pymysql.connect(**database.arguments)
    aconn = await asyncmy.connect(**database.arguments)

    def run(sql, values):
        with conn.cursor() as cursor:
            cursor.execute(sql, values)

    async def arun(sql, values):
        async with aconn.cursor() as cursor:
            await cursor.execute(sql.replace("_binary ", ""), values)

    return {
        "pymysql": Sync(conn, run, insert, order),
        "asyncmy": Async(aconn, arun, insert, order, aconn.commit),
    }


async def measure(contests, rounds, transactions):
    """Return for each driver: (kind, part) → microseconds, the median of each round."""
    for contest in contests.values():  # statements prepared, pages in memory
        for n in range(200):
            await contest.hand(n)
            await contest.add(n)
    medians = {name: {} for name in contests}
    for number in range(rounds):
        for name, contest in contests.items():
            found = {"by hand": [], "add": []}
            for n in range(transactions):
                for kind in ("by hand", "add") if n % 2 else ("add", "by hand"):
                    work = contest.add if kind == "add" else contest.hand
                    found[kind].append(await work(n))
            for kind, times in found.items():
                for part, seconds in zip(
                    ("statement", "transaction"), zip(*times, strict=True), strict=True
                ):
                    median = statistics.median(seconds) * 1e6
                    medians[name].setdefault((kind, part), []).append(median)
        say(f"round {number + 1} of {rounds}")
    for contest in contests.values():
        await contest.close()
    return medians


def report(medians):
    print(f"\nPython {platform.python_version()}, microseconds, medians\n")
    print(f"{'':16}{'statement':>26}{'':8}{'transaction':>26}")
    print(f"{'':16}{'hand':>9}{'add':>9}{'ratio':>8}{'':8}{'hand':>9}{'add':>9}{'ratio':>8}")
    for name, found in medians.items():
        line = f"{name:16}"
        for part in ("statement", "transaction"):
            hand, add = (statistics.median(found[kind, part]) for kind in ("by hand", "add"))
            line += f"{hand:>9.0f}{add:>9.0f}{add / hand:>8.2f}{'':8}"
        print(line.rstrip())


def own_database(kind, target, stack):
    """A database of its own on a server that is there, or that is started for this run."""
    if "://" not in target:
        from tests.servers.catalog import SERVERS

        server = SERVERS[target].make()
        server.start()
        stack.append(server.stop)
        target = server.url
    database = kind(target)
    database.create()
    stack.append(database.drop)
    return database


async def run(folder, databases, rounds, transactions):
    """Measure sqlite3 and the drivers of these databases; `measure` says what comes back."""
    contests = await sqlite_contest(folder)
    for database in databases:
        make = postgres_contests if isinstance(database, PostgresDatabase) else mysql_contests
        contests |= await make(database)
    return await measure(contests, rounds, transactions)


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m bench.add", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--postgres", help="a URL, or `postgres` or `postgres18` to start one")
    parser.add_argument("--mysql", help="a URL, or `mariadb` to start one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transactions", type=int, default=400)
    parser.add_argument("--dir", help="where the SQLite file goes (default: the system's)")
    args = parser.parse_args(argv)
    folder = tempfile.mkdtemp(prefix="postroom-bench-", dir=args.dir)
    stack = [lambda: shutil.rmtree(folder)]
    try:
        databases = []
        if args.postgres:
            databases.append(own_database(PostgresDatabase, args.postgres, stack))
        if args.mysql:
            databases.append(own_database(MariadbDatabase, args.mysql, stack))
        report(asyncio.run(run(folder, databases, args.rounds, args.transactions)))
    finally:
        for undo in reversed(stack):
            undo()
    return 0


if __name__ == "__main__":
    sys.exit(main())
