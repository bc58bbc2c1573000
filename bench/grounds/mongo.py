"""MongoDB: each round copies prepared documents into an empty outbox."""

import asyncio
from itertools import islice

from bench.grounds.events import BLOCKED, BLOCKED_LANE, PAYLOAD_TEXT, rows

STEP = 10_000
CLAIMS = 1_000  # enough for a worker that takes one event at a time


def _message(found):
    """What `events.message` makes of a row, of a document."""
    return (
        found["key"],
        found["payload"],
        [
            ("postroom-id", found["_id"]),
            ("postroom-type", found["event_type"]),
            ("content-type", found["content_type"]),
            ("postroom-schema-version", str(found["schema_version"])),
            ("postroom-occurred-at", str(found["occurred_at"])),
            ("postroom-key", found["key"]),
        ],
    )


class MongoGround:
    name = "bare pymongo loop"
    server = None

    def __init__(self, url):
        import pymongo

        from postroom.stores.mongo import MongoStore

        self.url = url
        asyncio.run(MongoStore(url).migrate())
        self._client = pymongo.MongoClient(url)
        self.database = self._client.get_default_database()
        self.version = f"MongoDB {self._client.server_info()['version']}"
        self.peers = [("a claim for each event (findOneAndUpdate)", self._claims, self._claiming)]

    def close(self):
        self._client.close()
        if self.server:
            self.server.stop()

    def store(self):
        from postroom.stores.mongo import MongoStore

        return MongoStore(self.url)

    def prepare(self, name, events, keys, hot=0.0, crowd=None, number=0):
        from postroom.transactions.mongo import without_transaction

        for collection in ("outbox", "block"):
            self.database[f"postroom_{collection}"].delete_many({})
        if crowd:
            self._crowd(crowd, number)
        prepared, bare = iter(rows(events, keys, hot)), without_transaction(self.database)
        while step := list(islice(prepared, STEP)):
            bare.insert(step)
        for collection in ("outbox", "block"):
            self._copy(f"postroom_{collection}", f"bench_{name}_{collection}")

    def reset(self, name):
        for collection in ("outbox", "block"):
            self._copy(f"bench_{name}_{collection}", f"postroom_{collection}")
        self._client.admin.command("fsync")

    def _copy(self, source, target):
        """`$out` keeps the indexes of what it replaces."""
        self.database[source].aggregate([{"$out": target}])

    def bare(self, batch, send=None):
        """The limit: read in order, send all if told to, delete in one command."""
        return asyncio.run(self._bare(batch, send))

    async def _bare(self, batch, send):
        import pymongo

        sent = 0
        async with pymongo.AsyncMongoClient(self.url) as client:
            outbox = client.get_default_database()["postroom_outbox"]
            while True:
                cursor = outbox.find({"stage": "ready", "size": {"$gte": 0}}).sort(
                    {"ct": 1, "n": 1}
                )
                found = await cursor.limit(batch).batch_size(batch).to_list()
                if not found:
                    return sent
                if send:
                    send([_message(one) for one in found])
                await outbox.delete_many({"_id": {"$in": [one["_id"] for one in found]}})
                sent += len(found)

    def _claims(self):
        """The outbox of a worker that claims events one by one."""
        outbox = self.database["bench_claims"]
        outbox.drop()
        outbox.create_index({"status": 1, "next_retry_at": 1, "created_at": 1})
        outbox.insert_many(
            [
                {
                    "_id": f"e{n}", "stream": "main", "event_type": "t", "aggregate_id": f"k{n}",
                    "payload": PAYLOAD_TEXT, "status": "new", "attempts": 0, "created_at": n,
                    "next_retry_at": 0, "lease_owner": None, "lease_until": None,
                }
                for n in range(CLAIMS)
            ]
        )  # fmt: skip

    def _claiming(self):
        return asyncio.run(self._claim_each())

    async def _claim_each(self):
        """Claim the oldest due event, do nothing with it, mark it done: two commands for each."""
        import pymongo

        done = 0
        async with pymongo.AsyncMongoClient(self.url, w="majority") as client:
            outbox = client.get_default_database()["bench_claims"]
            while True:
                claimed = await outbox.find_one_and_update(
                    {"status": {"$in": ["new", "failed"]}, "next_retry_at": {"$lte": 1}},
                    {
                        "$set": {"status": "processing", "lease_owner": "me", "lease_until": 9},
                        "$inc": {"attempts": 1},
                    },
                    sort={"created_at": 1},
                )
                if claimed is None:
                    return done
                await outbox.update_one(
                    {"_id": claimed["_id"], "lease_owner": "me"},
                    {"$set": {"status": "done", "lease_owner": None, "lease_until": None}},
                )
                done += 1

    def _crowd(self, kind, number):
        import datetime

        from bson import Int64, Timestamp

        from postroom.event import Event
        from postroom.outbox import to_row
        from postroom.transactions.mongo.documents import document, place_numbers

        now = datetime.datetime.now(datetime.UTC)
        tomorrow = now + datetime.timedelta(days=1)
        row = to_row(Event("crowd", None, key="blocked"), "t")
        (n,) = place_numbers(1, b"")
        template = document(row, Timestamp(1, 1), n)["$mergeObjects"][0]["$literal"]
        status, stage, awaits = {
            "done": ("done", "over", now),
            "scheduled": ("pending", "waiting", tomorrow),
            "followers": ("pending", "parked", BLOCKED),
        }[kind]
        template |= {
            "payload": PAYLOAD_TEXT, "size": 200, "created_at": now, "status": status,
            "stage": stage, "awaits": awaits, "next_attempt_at": tomorrow,
            "settled_at": now if kind == "done" else None,
        }  # fmt: skip

        def made(number):
            own = {"lane": number % 64, "key_hash": number.to_bytes(16, "big")}
            if kind == "followers":
                own = {"lane": BLOCKED_LANE, "key_hash": BLOCKED}
            place = {"_id": f"{kind}-{number}", "ct": Timestamp(1000 + number, 1), "n": Int64(n)}
            return {**template, **own, **place}

        outbox = self.database["postroom_outbox"]
        if kind == "followers":
            head = {**made(0), "_id": "head", "ct": Timestamp(1, 1), "stage": "waiting"}
            outbox.insert_one({**head, "status": "failed", "awaits": tomorrow})
            self.database["postroom_block"].insert_one(
                {
                    "_id": {"stream": "main", "key_hash": BLOCKED}, "stream": "main",
                    "lane": BLOCKED_LANE, "key_hash": BLOCKED, "key": "blocked", "head": "head",
                    "ct": Timestamp(1, 1), "n": Int64(n), "since": now,
                }
            )  # fmt: skip
        for first in range(0, number, STEP):
            outbox.insert_many([made(one) for one in range(first, min(first + STEP, number))])
