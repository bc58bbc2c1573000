"""The shop: changes orders and adds events in the same transaction.

Its tables are `orders`, `changes` (one row for each committed change), and `undone` (events whose
transaction was rolled back on purpose, recorded afterwards in another transaction).
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time
from pathlib import Path

from postroom.event import Event
from postroom.outbox import SyncOutbox

STEPS = ("placed", "paid", "packed", "shipped", "delivered")
ROLLED_BACK = 0.125  # share of all transactions
TABLES = """
CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT NOT NULL);
CREATE TABLE changes (
    n INTEGER PRIMARY KEY, event_id TEXT NOT NULL, order_id TEXT NOT NULL, status TEXT NOT NULL);
CREATE TABLE undone (event_id TEXT NOT NULL, order_id TEXT NOT NULL);
"""


class ChangedMindError(Exception):
    """A failure in the middle of a business transaction."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the shop's database with a timeout, as other processes write to it too."""
    conn = sqlite3.connect(path, timeout=15.0)
    conn.execute("PRAGMA synchronous = NORMAL")  # survives a killed process, and is fast
    return conn


def change_order(
    conn: sqlite3.Connection, outbox: SyncOutbox, event: Event, *, goes_wrong: bool = False
) -> None:
    """Change an order and add its event in one transaction."""
    with outbox.transaction(conn):
        order, status = event.payload["order"], event.payload["status"]
        conn.execute(
            "INSERT INTO orders VALUES (?, ?) "
            "ON CONFLICT (id) DO UPDATE SET status = excluded.status",
            (order, status),
        )
        conn.execute(
            "INSERT INTO changes (event_id, order_id, status) VALUES (?, ?, ?)",
            (event.id, order, status),
        )
        outbox.add(conn, event)
        if goes_wrong:
            raise ChangedMindError


def note_undone(conn: sqlite3.Connection, event: Event) -> None:
    """Record an event that must never be delivered."""
    with conn:
        conn.execute("INSERT INTO undone VALUES (?, ?)", (event.id, event.payload["order"]))


def tell(written: int, rolled_back: int) -> None:
    """Report to the stage."""
    sys.stdout.write(json.dumps({"written": written, "rolled_back": rolled_back}) + "\n")
    sys.stdout.flush()


def run(path: Path, orders: int, seed: int, rate: float) -> None:
    """Move orders through all their steps, in random order, at `rate` transactions per second."""
    chance = random.Random(seed)
    outbox = SyncOutbox()
    conn = connect(path)
    conn.executescript(TABLES)
    steps_done = {f"order-{number:04}": 0 for number in range(1, orders + 1)}
    written = rolled_back = 0
    due_at = time.monotonic()
    while steps_done:
        order = chance.choice(list(steps_done))
        number = steps_done[order] + 1
        status = STEPS[number - 1]
        payload = {"order": order, "number": number, "status": status}
        event = Event(f"order.{status}", payload, key=order, aggregate_type="order", topic="orders")
        try:
            change_order(conn, outbox, event, goes_wrong=chance.random() < ROLLED_BACK)
        except ChangedMindError:
            note_undone(conn, event)
            rolled_back += 1
        else:
            written += 1
            steps_done[order] = number
            if number == len(STEPS):
                del steps_done[order]
        tell(written, rolled_back)
        due_at += 1 / rate
        time.sleep(max(0.0, due_at - time.monotonic()))
    conn.close()
