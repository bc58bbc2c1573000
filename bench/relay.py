"""How fast a relay empties an outbox, beside a bare driver doing the same work.

    python -m bench.relay --store sqlite            the comparison
    python -m bench.relay --store sqlite --growth   and with big tables around it

The destination does nothing, so that what is measured is the relay and its store. Rounds alternate
between the contestants; the table shows medians and the spread over the rounds.
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

from postroom.brokers.memory import NullBroker
from postroom.clock import host_microseconds
from postroom.engine.relay import Relay
from postroom.event import Event
from postroom.outbox import SyncOutbox
from postroom.record import key_hash, lane_of
from postroom.stores.sqlite import SqliteStore

PAYLOAD = {"order": 4711, "total": 129.9, "items": ["a", "b", "c"], "note": "x" * 120}
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


def fill(path, events, keys, hot=0.0):
    """Write the events that are to be delivered."""
    asyncio.run(SqliteStore(path).migrate())
    connection = connect(path)
    outbox = SyncOutbox()
    for start in range(0, events, 10_000):
        connection.execute("BEGIN")
        outbox.add_many(
            connection,
            [
                Event(
                    "bench", PAYLOAD, key="hot" if hot and n % 100 < hot * 100 else f"k{n % keys}"
                )
                for n in range(start, min(events, start + 10_000))
            ],
        )
        connection.execute("COMMIT")
    connection.close()


def crowd(path, kind, number):
    """Add rows that cannot go now: done ones, scheduled ones, or followers of a blocked key."""
    connection = connect(path)
    now = host_microseconds()
    hashed = key_hash(None, "blocked", "")
    state, stage, due, settled = {
        "done": ("done", "over", None, now),
        "scheduled": ("pending", "waiting", now + 86_400_000_000, None),
        "followers": ("pending", "parked", None, None),
    }[kind]
    connection.execute("BEGIN")
    if kind == "followers":
        connection.execute(
            "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, key, payload, "
            "content_type, size, occurred_at, created_at, state, stage, attempts, next_attempt_at) "
            "VALUES ('head', ?, ?, 'b', 't', 'blocked', '{}', 'application/json', 2, ?, ?, "
            "'failed', 'waiting', 1, ?)",
            (lane_of(hashed), hashed, now, now, now + 86_400_000_000),
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
                f"{kind}-{n}", lane_of(hashed) if kind == "followers" else n % 64,
                hashed if kind == "followers" else n.to_bytes(16, "big"),
                "blocked" if kind == "followers" else f"c{n % 1000}",
                json.dumps(PAYLOAD), now, now, state, stage, due, settled,
            )
            for n in range(number)
        ),
    )  # fmt: skip
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def bare(path, batch):
    """The limit: read in order, delete in one statement, commit."""
    connection = connect(path)
    sent = 0
    while True:
        rows = connection.execute(
            f"SELECT {COLUMNS} FROM postroom_outbox WHERE stage = 'ready' ORDER BY seq LIMIT ?",
            (batch,),
        ).fetchall()
        if not rows:
            break
        connection.execute("BEGIN IMMEDIATE")
        marks = ",".join("?" * len(rows))
        connection.execute(
            f"DELETE FROM postroom_outbox WHERE seq IN ({marks})", [row[0] for row in rows]
        )
        connection.execute("COMMIT")
        sent += len(rows)
    connection.close()
    return sent


def relay(path, batch, keep_done):
    async def run():
        relay = Relay(
            SqliteStore(path), NullBroker(), batch_size=batch, max_batch_size=batch,
            keep_done_seconds=keep_done,
        )  # fmt: skip
        return (await relay.drain()).done

    return asyncio.run(run())


def timed(source, work):
    """Run the work on a fresh copy of the file; returns events per second."""
    folder = tempfile.mkdtemp(prefix="postroom-bench-", dir=os.path.dirname(source))
    path = os.path.join(folder, "outbox.db")
    try:
        shutil.copy(source, path)
        began = time.perf_counter()
        sent = work(path)
        return sent / (time.perf_counter() - began), sent
    finally:
        shutil.rmtree(folder)


def spread(rates):
    return f"{min(rates):,.0f}–{max(rates):,.0f}"


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.relay")
    parser.add_argument("--store", default="sqlite", choices=["sqlite"])
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--growth", action="store_true", help="also with big tables around it")
    parser.add_argument("--dir", help="where the database files go (default: the system's)")
    parser.add_argument("--json", help="append the results to this file, one object a line")
    args = parser.parse_args(argv)

    folder = tempfile.mkdtemp(prefix="postroom-bench-", dir=args.dir)
    try:
        return measure(args, folder)
    finally:
        shutil.rmtree(folder)


def measure(args, folder):
    def source(name, crowd_kind=None, number=0, hot=0.0):
        print(f"preparing: {name} …", file=sys.stderr)
        path = os.path.join(folder, f"{len(os.listdir(folder))}.db")
        asyncio.run(SqliteStore(path).migrate())
        if crowd_kind:
            crowd(path, crowd_kind, number)
        fill(path, args.events, args.keys, hot)
        connection = connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return path

    plain = source("plain outbox")
    contests = [
        ("bare sqlite3 loop", plain, lambda path: bare(path, args.batch)),
        ("relay, keep_done=0", plain, lambda path: relay(path, args.batch, 0)),
        ("relay, default (kept for a day)", plain, lambda path: relay(path, args.batch, 86_400)),
    ]
    if args.growth:
        for name, kind, number in (
            ("relay, keep_done=0, 1,000,000 done rows", "done", 1_000_000),
            ("relay, keep_done=0, 500,000 scheduled", "scheduled", 500_000),
            ("relay, keep_done=0, 100,000 followers of a block", "followers", 100_000),
        ):
            path = source(name, kind, number)
            contests.append((name, path, lambda path: relay(path, args.batch, 0)))
        hot = source("hot key", hot=0.5)
        contests.append(("relay, keep_done=0, one hot key (half)", hot, contests[1][2]))

    rates = {name: [] for name, _, _ in contests}
    for round_number in range(args.rounds):
        for name, path, work in contests:
            rate, sent = timed(path, work)
            if sent != args.events:
                print(f"{name}: sent {sent} of {args.events}", file=sys.stderr)
                return 1
            rates[name].append(rate)
        print(f"round {round_number + 1} of {args.rounds}", file=sys.stderr)

    reference = statistics.median(rates["bare sqlite3 loop"])
    ours = statistics.median(rates["relay, keep_done=0"])
    print(
        f"\n{args.events:,} events, {args.keys:,} keys, batch {args.batch}, {args.rounds} rounds, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}\n"
    )
    print(f"{'':52}{'events/s':>10}  {'spread':>17}  {'of bare':>7}  {'of plain':>8}")
    for name, found in rates.items():
        median = statistics.median(found)
        print(
            f"{name:52}{median:>10,.0f}  {spread(found):>17}  {median / reference:>7.2f}  "
            f"{median / ours:>8.2f}"
        )
        if args.json:
            with open(args.json, "a") as file:
                json.dump(
                    {
                        "suite": "relay", "name": name, "ours": median, "reference": reference,
                        "ratio": median / reference, "spread": [min(found), max(found)],
                        "events": args.events, "batch": args.batch, "relays": 1,
                        "versions": {
                            "python": platform.python_version(), "sqlite": sqlite3.sqlite_version
                        },
                    },
                    file,
                )  # fmt: skip
                file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
