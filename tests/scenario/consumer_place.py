"""A place where consumers in processes of their own leave effects: PostgreSQL, and a broker."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from functools import cache

import psycopg

from postroom.stores.postgres import PostgresStore
from postroom.testing.consumer import Sent
from tests.prepared import Prepared, lines_of
from tests.scenario.place import until


class Ledger:
    """The effects in a database, and what they caused."""

    def __init__(self, url):
        self.url = url

    async def create(self):
        store = PostgresStore(self.url)
        await store.migrate()
        await store.close()
        self.run("CREATE TABLE effects (n bigserial, message text, process int)")
        return self

    def run(self, sql):
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def effects(self):
        """Messages in the order of their effects."""
        return [message for (message,) in self.run("SELECT message FROM effects ORDER BY n")]

    def by_key(self):
        """Key → messages in the order of their effects; `a-1` is of key a."""
        found = {}
        for message in self.effects():
            found.setdefault(message.partition("-")[0], []).append(message)
        return found

    def caused(self):
        """The messages whose effect told the world of itself, by the outbox."""
        rows = self.run("SELECT payload::json->>'of' FROM postroom_outbox WHERE stream = 'main'")
        return sorted(of for (of,) in rows)

    def inbox(self):
        rows = self.run("SELECT id FROM postroom_inbox WHERE state = 'done' ORDER BY id")
        return [found for (found,) in rows]


class Process:
    """A consumer in a process; `said` is what it has told so far."""

    def __init__(self, process, output):
        self._process = process
        self.pid = process.pid
        self.said = []
        self._listening = asyncio.create_task(self._listen(output))

    async def _listen(self, output):
        async for line in lines_of(output):
            self.said.append(line)

    async def runs(self):
        await until(lambda: "running" in self.said)

    def signal(self, number):
        self._process.send_signal(number)

    async def ended(self, seconds=40.0):
        """Wait for its end; returns the exit code."""
        await until(lambda: self._process.poll() is not None, seconds)
        await self._listening
        return self._process.returncode

    async def stop(self):
        self.signal(signal.SIGTERM)
        return await self.ended()


@asynccontextmanager
async def consumer(ledger, source_url, *options):
    """Start a consumer process; it is gone afterwards."""
    ours, theirs = os.pipe()
    process = _prepared().start(
        "tests.scenario.consumer_process", ledger.url, source_url, *options,
        env=dict(os.environ), stdout=theirs, stderr=2,
    )  # fmt: skip
    os.close(theirs)
    started = Process(process, ours)
    try:
        yield started
    finally:
        process.kill()
        await started.ended()


@cache
def _prepared():
    return Prepared(
        "tests.scenario.consumer_process", "postroom.stores.postgres", "postroom.sources.kafka.source",
        "postroom.sources.rabbitmq.source", env=dict(os.environ), options=["-W", "error"],
    )  # fmt: skip


def orders(keys, each, start=1):
    """Messages of several keys, the keys in turn: `a-1`, `b-1`, `a-2`, …"""
    return [
        Sent(f"{key}-{n}", b'{"n":1}', key=key) for n in range(start, start + each) for key in keys
    ]
