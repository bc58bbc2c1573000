"""MongoDB under torture: the same tables as collections; a change stream in place of triggers."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress

import pymongo
from bson.binary import UUID_SUBTYPE, Binary
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from tests.torture.worlds import SettledRow, Taken, add_and_count, guilty_of

_MAJORITY = WriteConcern("majority")
_SNAPSHOT = ReadConcern("snapshot")
_WRITE_CONFLICT = 112
COUNT_SECONDS = 1.0


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
        self.session = self._holding = None
        self._effects, self._counted_at = 0, float("-inf")

    def make_tables(self, keys):
        for name in ("torture_log", "torture_effect", "torture_foreign", "torture_mark"):
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
        for event_id, padding, fate in made:
            n = add_and_count(
                outbox, self.session, lambda: self._count(key), event_id, key, padding, fate
            )
            self.database["torture_log"].insert_one(
                {"_id": event_id, "k": key, "n": n, "size": len(padding), "fate": fate},
                session=self.session,
            )

    def add_key(self, key):
        self.database["torture_key"].insert_one({"_id": key, "n": 0}, session=self.session)

    def _count(self, key):
        return self.database["torture_key"].find_one_and_update(
            {"_id": key}, {"$inc": {"n": 1}}, session=self.session, return_document=True
        )["n"]

    def is_conflict(self, error):
        return isinstance(error, OperationFailure) and error.code == _WRITE_CONFLICT

    def trace(self):
        """Its session: MongoDB keeps a transaction for a minute or more after its client died."""
        return self.session.session_id["id"]

    def clear_up(self, trace):
        """End what a dead writer has left open, that its keys are not locked for so long."""
        self.client.admin.command("killSessions", [{"id": Binary(trace, UUID_SUBTYPE)}])

    def hold_back(self):
        self._holding = self.client.start_session()
        self._holding.start_transaction(_SNAPSHOT)
        self.database["torture_key"].find_one({}, session=self._holding)

    def known(self, ids):
        return {d["_id"] for d in self.database["torture_log"].find({"_id": {"$in": list(ids)}})}

    def written(self):
        """By the keys' own numbers: what MongoDB knows of a collection's size is wrong after a kill."""
        return sum(key["n"] for key in self.database["torture_key"].find())

    def committed(self):
        return {
            d["_id"]: (d["k"], d["n"], d["size"], d["fate"])
            for d in self.database["torture_log"].find()
        }

    def innocent(self):
        guilty = list(guilty_of("mongodb"))
        return self.database["torture_log"].count_documents({"fate": {"$nin": guilty}})

    def met(self):
        return [d["n"] for d in self.database["torture_foreign"].find().sort("at")]

    def lock_lane(self, lane):
        self._lock("postroom_lease", {"stream": "main", "lane": lane}, {"$inc": {"settles": 1}})

    def lock_members(self):
        self._lock("postroom_member", {}, {"$set": {"locked": True}})

    def _lock(self, name, which, change):
        self._holding = self.client.start_session()
        self._holding.start_transaction()
        self.database[name].update_many(which, change, session=self._holding)

    def effects_written(self):
        now = time.monotonic()
        if now - self._counted_at > COUNT_SECONDS:
            self._effects, self._counted_at = (
                self.database["torture_effect"].count_documents({}),
                now,
            )
        return self._effects

    def happened(self):
        return len(self.database["torture_effect"].distinct("id"))

    def strangers(self):
        return None  # the server counts its own among them

    def effects(self):
        found = self.database["torture_effect"].find().sort("at")
        return [(d["id"], d["k"], d["n"]) for d in found]

    def close(self):
        if self._holding is not None:
            with suppress(PyMongoError):
                self._holding.end_session()
        self.client.close()


def add_user(url, name, password):
    """Let relays and consumers come with a password; the server takes those without one, too."""
    with pymongo.MongoClient(url) as client:
        client.admin.command("createUser", name, pwd=password, roles=["root"])


class ChangeTap(threading.Thread):
    """Follows leases and events that become done by one change stream, which survives fail-overs.

    The stream has the order of the commits, so the owner of a lane is known at every moment.
    """

    def __init__(self, url):
        super().__init__(daemon=True)
        self.url = url
        self.leases = []
        self._done = []
        self._documents = {}
        self._ended = False

    def prepare(self, database):
        for name in ("postroom_lease", "postroom_outbox"):
            database.command("collMod", name, changeStreamPreAndPostImages={"enabled": True})

    def run(self):
        token = None
        with pymongo.MongoClient(self.url, tz_aware=True) as client:
            database = client.get_default_database()
            while not self._ended:
                with (
                    suppress(PyMongoError),
                    database.watch(
                        _OF_INTEREST, full_document="whenAvailable", resume_after=token
                    ) as stream,
                ):
                    while not self._ended:
                        change = stream.try_next()
                        token = stream.resume_token
                        if change is not None:
                            self._note(change)

    def _note(self, change):
        document, at = change["fullDocument"], change["wallTime"].timestamp()
        collection = change["ns"]["coll"]
        if collection == "torture_mark":
            self._ended = True
        elif collection == "postroom_outbox":
            owner = self._documents.get((document["stream"], document["lane"]), {}).get("owner")
            self._done.append(SettledRow(document["_id"], owner, "", at))
        else:
            self._note_lease(document, change["wallTime"])

    def _note_lease(self, document, now):
        place = document["stream"], document["lane"]
        before = self._documents.get(place)
        self._documents[place] = document
        if before and (before["token"], before["owner"]) != (document["token"], document["owner"]):
            left = (before["until"] - now).total_seconds()
            self.leases.append(
                Taken(
                    *place, document["token"], document["owner"], before["owner"], left,
                    now.timestamp(),
                )
            )  # fmt: skip

    def end(self):
        """Return leases and settled events once everything until now has been seen."""
        with pymongo.MongoClient(self.url) as client:
            client.get_default_database()["torture_mark"].insert_one({})
        self.join(60)
        if not self._ended:
            raise TimeoutError("the change stream does not come to its end")
        return self.leases, self._done


_OF_INTEREST = [
    {
        "$match": {
            "$or": [
                {"ns.coll": {"$in": ["postroom_lease", "torture_mark"]}},
                {"ns.coll": "postroom_outbox", "updateDescription.updatedFields.status": "done"},
            ]
        }
    }
]
