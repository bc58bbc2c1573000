"""Handlers in a relay, one INSERT of effect each, beside ten bare connections that do the same.

    python -m bench handlers --quick
    python -m bench.handlers --store postgres          one store, on a server of its own
    python -m bench.handlers --store postgresql://…    on one that is there (its outbox is emptied!)

A bare connection begins, writes the effect, deletes the event and commits, for one event after the
other: no lease, no attempts, no inbox, no order by key. SQLite has one writer at a time: one bare
connection. Rounds alternate between the contestants.
"""

import argparse
import asyncio
import sys

from bench import relay
from bench.grounds import open_ground
from bench.result import beside, table, versions
from bench.rounds import Contest, alternate
from postroom import Handlers
from postroom.model.url import Url

WORKERS = 10
TOGETHER = 50
KEYS = 1_000
EFFECT = "INSERT INTO bench_effect (message) VALUES (%s)"


class SqliteEffects:
    """One connection: SQLite has one writer at a time."""

    reference = "bare loop: effect, delete, durable commit"

    def __init__(self, ground):
        self.ground = ground
        self.effect_sql = ground.EFFECT

    def prepare(self, events):
        self.ground.prepare("plain", events, KEYS)

    def reset(self):
        self.ground.reset("plain")

    def bare(self, batch):
        return self.ground.bare_effects(batch)

    async def effect(self, event, tx):
        await tx.execute(self.effect_sql, (event.id,))

    def sync_effect(self, event, tx):
        tx.execute(self.effect_sql, (event.id,))


class _Server:
    reference = f"{WORKERS} bare connections: begin, effect, delete, commit"

    def __init__(self, ground):
        self.ground = ground

    def prepare(self, events):
        self.make()
        self.ground.prepare("plain", events, KEYS)

    def reset(self):
        self.clear()
        self.ground.reset("plain")

    def bare(self, batch):
        return asyncio.run(self.compete())

    async def compete(self):
        found = iter(self.ready())
        done = 0

        async def work(connect):
            nonlocal done
            async with connect() as one:
                for row in found:
                    await self.handle(one, *row)
                    done += 1

        await asyncio.gather(*(work(self.connect) for _ in range(WORKERS)))
        return done


class PostgresEffects(_Server):
    def make(self):
        run = self.ground.run
        run("CREATE TABLE IF NOT EXISTS bench_effect (n bigserial PRIMARY KEY, message text)")

    def clear(self):
        self.ground.run("TRUNCATE postroom_inbox, bench_effect")

    def ready(self):
        run = self.ground.run
        return run("SELECT seq, id FROM postroom_outbox ORDER BY seq").fetchall()

    def connect(self):
        import psycopg

        return _opened(psycopg.AsyncConnection.connect(self.ground.url, autocommit=True))

    async def handle(self, connection, seq, event_id):
        await connection.execute("BEGIN")
        await connection.execute(EFFECT, (event_id,))
        await connection.execute("DELETE FROM postroom_outbox WHERE seq = %s", (seq,))
        await connection.execute("COMMIT")

    async def effect(self, event, tx):
        await tx.execute(EFFECT, (event.id,))

    def sync_effect(self, event, tx):
        tx.execute(EFFECT, (event.id,))


class MysqlEffects(_Server):
    def make(self):
        self.ground.run(
            "CREATE TABLE IF NOT EXISTS bench_effect "
            "(n bigint AUTO_INCREMENT PRIMARY KEY, message varchar(255))"
        )

    def clear(self):
        for name in ("postroom_inbox", "bench_effect"):
            self.ground.run(f"TRUNCATE TABLE {name}")

    def ready(self):
        return self.ground.run("SELECT seq, id FROM postroom_outbox ORDER BY seq")

    def connect(self):
        import asyncmy

        url = Url.parse(self.ground.url)
        return _closed(
            asyncmy.connect(
                host=url.host, port=url.port or 3306, user=url.user or "root",
                password=url.password or "", db=url.database, charset="utf8mb4", autocommit=True,
            )
        )  # fmt: skip

    async def handle(self, connection, seq, event_id):
        async with connection.cursor() as cursor:
            await connection.begin()
            await cursor.execute(EFFECT, (event_id,))
            await cursor.execute("DELETE FROM postroom_outbox WHERE seq = %s", (seq,))
            await connection.commit()

    async def effect(self, event, tx):
        async with tx.cursor() as cursor:
            await cursor.execute(EFFECT, (event.id,))

    def sync_effect(self, event, tx):
        with tx.cursor() as cursor:
            cursor.execute(EFFECT, (event.id,))


class MongoEffects(_Server):
    def make(self):
        database = self.ground.database
        if "bench_effect" not in database.list_collection_names():
            database.create_collection("bench_effect")

    def clear(self):
        for collection in ("postroom_inbox", "bench_effect"):
            self.ground.database[collection].delete_many({})

    def ready(self):
        found = self.ground.database["postroom_outbox"].find({}, {"_id": 1}).sort({"ct": 1, "n": 1})
        return [(one["_id"],) for one in found]

    async def compete(self):
        import pymongo

        async with pymongo.AsyncMongoClient(self.ground.url) as client:
            self._client = client
            return await super().compete()

    def connect(self):
        return self._client.start_session()

    async def handle(self, session, event_id):
        database = session.client.get_default_database()

        async def work(session):
            await database["bench_effect"].insert_one({"message": event_id}, session=session)
            await database["postroom_outbox"].delete_one({"_id": event_id}, session=session)

        await session.with_transaction(work)

    async def effect(self, event, tx):
        database = tx.client.get_default_database()
        await database["bench_effect"].insert_one({"message": event.id}, session=tx)

    def sync_effect(self, event, tx):
        database = tx.client.get_default_database()
        database["bench_effect"].insert_one({"message": event.id}, session=tx)


EFFECTS = {
    "SqliteGround": SqliteEffects,
    "PostgresGround": PostgresEffects,
    "MysqlGround": MysqlEffects,
    "MongoGround": MongoEffects,
}


class _opened:  # noqa: N801 - a context manager
    """Await a connection, and leave it as psycopg does."""

    def __init__(self, connecting):
        self._connecting = connecting

    async def __aenter__(self):
        self._connection = await self._connecting
        return self._connection

    async def __aexit__(self, *error):
        await self._connection.close()


class _closed(_opened):  # noqa: N801 - a context manager
    async def __aexit__(self, *error):
        self._connection.close()


def contests(ground, events, batch):
    """The bare loops, and relays with handlers: by default, fifty together, and in threads."""
    effects = EFFECTS[type(ground).__name__](ground)
    effects.prepare(events)

    def relaying(shared=1, keep_done=0, *, in_threads=False):
        made = Handlers(batch=shared)
        made.on("bench", name="effect")(effects.sync_effect if in_threads else effects.effect)
        return relay.drain(ground.store(), batch, keep_done, lambda: made)

    runs = {
        effects.reference: lambda: effects.bare(batch),
        "handlers": relaying,
        "handlers, done events kept": lambda: relaying(1, 86_400),
        f"handlers, batch={TOGETHER}": lambda: relaying(TOGETHER),
        "sync handlers": lambda: relaying(in_threads=True),
        f"sync handlers, batch={TOGETHER}": lambda: relaying(TOGETHER, in_threads=True),
    }
    return [Contest(name, run, effects.reset, events) for name, run in runs.items()]


def results(ground, figures, part, events, batch, **fields):
    reference, *ours = figures
    return [
        beside(
            figures, name, reference, suite="handlers", part=part, events=events, batch=batch,
            versions=versions(store=ground.version), **fields,
        )
        for name in ours
    ]  # fmt: skip


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.handlers")
    parser.add_argument("--store", default="sqlite", help="sqlite, a server's name, or a URL")
    parser.add_argument("--events", type=int, default=2_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    ground = open_ground(args.store)
    try:
        figures = alternate(contests(ground, args.events, args.batch), args.rounds)
    finally:
        ground.close()
    print(table(results(ground, figures, args.store, args.events, args.batch)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
