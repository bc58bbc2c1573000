"""MongoDB under torture: the same tables as collections, leases seen by a change stream."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress

import pymongo
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from tests.torture.worlds import event_of

_MAJORITY = WriteConcern("majority")
_SNAPSHOT = ReadConcern("snapshot")


class MongoWorld:
    has_own_clock = True

    def __init__(self, url):
        self.url = url
        self.client = pymongo.MongoClient(
            url, serverSelectionTimeoutMS=5_000, socketTimeoutMS=20_000
        )
        self.database = self.client.get_default_database(
            read_concern=ReadConcern("majority"), write_concern=_MAJORITY
        )
        self.session = None

    def make_tables(self, keys):
        for name in ("torture_log", "torture_effect"):
            self.database.create_collection(name)
        self.database["torture_key"].insert_many([{"_id": key, "n": 0} for key in keys])

    @contextmanager
    def transaction(self):
        with self.client.start_session() as session:
            session.start_transaction(_SNAPSHOT, _MAJORITY)
            self.session = session
            try:
                yield
            except BaseException:
                if session.in_transaction:
                    with suppress(PyMongoError):
                        session.abort_transaction()
                raise
            finally:
                self.session = None

    def commit(self):
        self.session.commit_transaction()

    def write(self, outbox, key, made):
        for event_id, padding, poison in made:
            found = self.database["torture_key"].find_one_and_update(
                {"_id": key}, {"$inc": {"n": 1}}, session=self.session, return_document=True
            )
            outbox.add(self.session, event_of(event_id, key, found["n"], padding, poison))
            self.database["torture_log"].insert_one(
                {"_id": event_id, "k": key, "n": found["n"], "size": len(padding),
                 "poison": poison},
                session=self.session,
            )  # fmt: skip

    def known(self, ids):
        return {d["_id"] for d in self.database["torture_log"].find({"_id": {"$in": list(ids)}})}

    def written(self):
        return self.database["torture_log"].estimated_document_count()

    def committed(self):
        return {
            d["_id"]: (d["k"], d["n"], d["size"], d["poison"])
            for d in self.database["torture_log"].find()
        }

    def effects(self):
        found = self.database["torture_effect"].find().sort("at")
        return [(d["id"], d["k"], d["n"]) for d in found]

    def leases(self):
        return []

    def close(self):
        self.client.close()


class LeaseTap(threading.Thread):
    """Follows the lanes' documents by a change stream, which survives fail-overs."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.client = pymongo.MongoClient(url)
        self.found = []
        self._before = {}
        self._ended = False

    def run(self):
        database = self.client.get_default_database()
        database.command(
            "collMod", "postroom_lease", changeStreamPreAndPostImages={"enabled": True}
        )
        collection = database["postroom_lease"]
        with suppress(PyMongoError), collection.watch(full_document="required") as stream:
            while not self._ended:
                change = stream.try_next()
                if change is not None:
                    self._note(change)

    def _note(self, change):
        document = change["fullDocument"]
        now = change["wallTime"]
        before = self._before.get(document["lane"])
        self._before[document["lane"]] = document
        if before and (before["token"], before["owner"]) != (document["token"], document["owner"]):
            left = (before["until"] - now).total_seconds()
            self.found.append(
                (document["lane"], document["token"], document["owner"], before["owner"], left)
            )

    def end(self):
        """Return what was seen, in the form of `leases` of the other worlds."""
        self._ended = True
        self.join(10)
        self.client.close()
        return self.found
