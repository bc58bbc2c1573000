"""A plug-in as its author would write it: a store, a broker and a source of the scheme `shelf`.

The store has the members of the Store port and no other, so that postroom cannot know it by more.
What it keeps is in an SQLite file; the broker appends lines to a file for each topic, and the source
reads them.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from postroom.broker import CONFIRMED, UNSENT, Broker, BrokerCapabilities, Outcome, Verdict
from postroom.engine.consumer.messages import to_message
from postroom.errors import ConfigError
from postroom.model.diagnostics import Finding
from postroom.model.incoming import Incoming
from postroom.source import Source, SourceCapabilities, SourceConnection
from postroom.store import Adopted, AdoptingStore, Capabilities, Store
from postroom.stores.sqlite import SqliteStore


def folder_of(url, **readers):
    if url.hosts:
        raise ConfigError(f"{url}: write shelf:///folder")
    return Path(url.path.removeprefix("/")), url.options(readers)


class ShelfStore:
    """A file called `app.db` in a folder."""

    capabilities = Capabilities(concurrent_writers=False, server_clock=False, adopts=True)

    def __init__(self, url, **given):
        self._folder, options = folder_of(url, prefix=str)
        self._inner = SqliteStore(self._folder / "app.db", **options, **given)
        self.url = str(url)

    async def check(self):
        return [
            *await self._inner.check(),
            Finding("warning", "the shelf is dusty", "it was never cleaned", "clean it"),
        ]

    async def adopt(self, table, *, on_moved, **options):
        on_moved(2)
        return Adopted(2, len(options.get("statuses", ())))


def _inner(name):
    return property(lambda self: getattr(self._inner, name))


for _name in (n for n in dir(Store) if not n.startswith("_")):
    if _name not in vars(ShelfStore) and _name != "url":
        setattr(ShelfStore, _name, _inner(_name))
assert {n for n in dir(ShelfStore) if n[0] != "_"} | {"url"} == {
    n for n in dir(AdoptingStore) if n[0] != "_"
}


class ShelfBroker(Broker):
    """A file of lines for each topic."""

    capabilities = BrokerCapabilities(max_bytes=100_000)

    def __init__(self, url):
        self._folder, _ = folder_of(url)

    async def open(self): ...

    async def close(self): ...

    async def health(self):
        if not self._folder.is_dir():
            raise FileNotFoundError(self._folder)

    async def check(self, topics):
        await self.health()
        missing = sorted(topic for topic in topics if not (self._folder / topic).exists())
        return [
            Finding("info", f"the shelf has no {topic!r} yet", "nothing was sent", "send something")
            for topic in missing
        ]

    async def publish(self, batch, reporter):
        stopped = set()
        for record in batch:
            if record.key_hash in stopped:
                reporter.report(record, UNSENT)
                continue
            outcome = await asyncio.to_thread(self._append, record, reporter.outbox_id)
            reporter.report(record, outcome)
            if outcome is not CONFIRMED:
                stopped.add(record.key_hash)

    async def publish_alone(self, record, reporter):
        await self.publish([record], reporter)

    def _append(self, record, outbox_id):
        message = to_message(record, outbox_id)
        line = json.dumps([message.body.decode(), dict(message.headers), message.key])
        try:
            with (self._folder / record.topic).open("a") as file:
                file.write(line + "\n")
        except FileNotFoundError as error:
            return Outcome(Verdict.OUTAGE, str(error))
        return CONFIRMED


class ShelfSource(Source):
    """Reads the lines of one topic, from the first."""

    capabilities = SourceCapabilities(offsets=True)
    connection = SourceConnection()
    name = None

    def __init__(self, url):
        self._folder, options = folder_of(url, topic=str, group=str)
        self._topic, self.name = options["topic"], options.get("group")
        self._read = 0
        self.acked = []

    async def open(self): ...

    async def receive(self):
        path = self._folder / self._topic
        while True:
            lines = path.read_text().splitlines() if path.exists() else []
            if fresh := lines[self._read :]:
                first, self._read = self._read, len(lines)
                return [ShelfDelivery(self, n, line) for n, line in enumerate(fresh, first)]
            await asyncio.sleep(0.02)

    async def pause(self): ...

    async def close(self): ...

    async def health(self): ...

    async def check(self):
        self.capabilities = SourceCapabilities(offsets=True, redelivers_seconds=float("inf"))
        return [Finding("info", f"{self._topic} is read from the first line", "always", "nothing")]


class ShelfDelivery:
    is_lost = False

    def __init__(self, source, number, line):
        self._source, self._number = source, number
        body, headers, key = json.loads(line)
        self.message = Incoming("orders", body.encode(), headers, key, offset=str(number))

    def ack(self):
        self._source.acked.append(self._number)
