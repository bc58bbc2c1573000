"""A writer of MongoDB with the rights that are written down, and what it cannot forge (X-H2)."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pymongo
import pytest
from bson import Binary, Int64
from pymongo.errors import OperationFailure, WriteError

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.event import Event
from postroom.outbox import SyncOutbox
from postroom.stores.mongo import MongoStore
from tests.scenario.place import QUICK, ids, until
from tests.servers.mongo import Mongo, answers, connect, initiate

pytestmark = pytest.mark.server
PAGE = Path(__file__).parents[2] / "docs/operations/deploy.md"
(ROLE,) = re.findall(r"db\.createRole\((.*?)\)\n```", PAGE.read_text(), re.DOTALL)
DATABASE = "shop"
ADMIN, WRITER = "admin:secret", "writer:secret"


class Locked(Mongo):
    """A replica set of one on which everybody has to log in."""

    def prepare(self):
        super().prepare()
        key = self.folder / "key"
        key.write_text("c2VjcmV0IG9mIGEgdGVzdA==")
        key.chmod(0o400)

    def command(self):
        return [*super().command(), "--keyFile", self.folder / "key"]

    def answers(self):
        initiate(self.replica_set, [self.address])
        with connect(f"mongodb://{self.address}/?directConnection=true") as client:
            return answers(self.address) and client.admin.command("hello")["isWritablePrimary"]


def as_user(url, user, database=DATABASE):
    """Return the URL of a database for a user, all of whom are known in `admin`."""
    parts = urlsplit(url)
    query = f"{parts.query}&authSource=admin"
    return urlunsplit(
        parts._replace(netloc=f"{user}@{parts.netloc}", path=f"/{database}", query=query)
    )


def documented_role():
    """Return the role as the page writes it, as a command."""
    privileges = [
        {"resource": {"db": db, "collection": name}, "actions": re.findall(r'"(\w+)"', actions)}
        for db, name, actions in re.findall(
            r'\{db: "(\w+)", collection: "(\w+)"\}, actions: \[(.*?)\]', ROLE
        )
    ]
    assert len(privileges) == 3
    assert all(one["resource"]["db"] == DATABASE for one in privileges)
    return {"createRole": "postroomWriter", "roles": [], "privileges": privileges}


@pytest.fixture(scope="module")
def server_url():
    with Locked() as server:
        with connect(f"mongodb://{server.address}/?directConnection=true") as client:
            client.admin.command("createUser", "admin", pwd="secret", roles=["root"])
        with pymongo.MongoClient(as_user(server.url, ADMIN)) as client:
            client.admin.command(documented_role())
            client.admin.command("createUser", "writer", pwd="secret", roles=["postroomWriter"])
        yield server.url


@pytest.fixture
async def store(server_url):
    store = MongoStore(as_user(server_url, ADMIN))
    await store.migrate()
    await store.open()
    for name in ("outbox", "lease", "block", "member", "counter"):
        await store.connection.database[f"postroom_{name}"].delete_many({})
    yield store
    await store.close()


@pytest.fixture
def writer(server_url, store):
    with pymongo.MongoClient(as_user(server_url, WRITER)) as client:
        yield client


def add(client, *names, strict=False):
    outbox = SyncOutbox(ordering="strict" if strict else "keyed")
    with client.start_session() as session:
        events = [Event("t", {"n": 1}, id=name, key=name) for name in names]
        session.with_transaction(lambda s: outbox.add_many(s, events))


@pytest.mark.promise("W5")
async def test_a_writer_adds_with_these_rights(writer, store):
    add(writer, "one")
    add(writer, "two", "three", strict=True)
    assert sorted(await store.look_up(["one", "two", "three"])) == ["one", "three", "two"]


# X-H2
async def test_a_writer_reaches_nothing_but_what_it_writes(writer, store):
    add(writer, "one")
    shop = writer[DATABASE]
    forbidden = {
        "delete": lambda: shop["postroom_outbox"].delete_many({}),
        "drop": lambda: shop["postroom_outbox"].drop(),
        "weaken": lambda: shop.command("collMod", "postroom_outbox", validator={}),
        "index": lambda: shop["postroom_outbox"].drop_index("work"),
        "bypass": lambda: shop["postroom_outbox"].update_one(
            {}, {"$set": {"topic": 7}}, bypass_document_validation=True
        ),
        "meta": lambda: shop["postroom_meta"].update_one({}, {"$set": {"value": 99}}),
        "audit": lambda: shop["postroom_audit"].insert_one({"who": "nobody"}),
        "inbox": lambda: shop["postroom_inbox"].find_one(),
        **{
            name: lambda name=name: shop[f"postroom_{name}"].update_many({}, {"$set": {"x": 1}})
            for name in ("lease", "member", "block")
        },
    }
    for name, operation in forbidden.items():
        with pytest.raises(OperationFailure) as raised:
            operation()
        assert raised.value.code == 13, name  # Unauthorized


# X-H2
async def test_a_writer_can_store_nothing_that_cannot_be(writer, store):
    add(writer, "one")
    outbox = writer[DATABASE]["postroom_outbox"]
    honest = outbox.find_one()
    for forged in (
        {"size": 0},
        {"size": honest["size"] + 1},
        {"size": 2**31 - 1},
        {"payload": "x" * 1_000_000},
        {"payload": Binary(b"x" * 1_000_000)},
        {"headers": '{"a":"b"}'},
        {"lane": 64},
        {"lane": -1},
        {"lane": Int64(2**40)},
        {"key_hash": Binary(b"short")},
        {"attempts": 1_000_000},
        {"attempts": -1},
        {"status": "done"},
        {"status": "gone"},
        {"stage": "over"},
        {"awaits": "dead"},
        {"stream": 7},
        {"ct": 7},
    ):
        with pytest.raises(WriteError, match="validation"):
            outbox.insert_one({**honest, "_id": "forged", **forged})
        with pytest.raises(WriteError, match="validation"):
            outbox.update_one({"_id": "one"}, {"$set": forged})


# X-H2
@pytest.mark.promise("W9", "F1")
async def test_a_counter_that_a_strict_writer_has_set_costs_its_key_alone(writer, store):
    add(writer, "one", "two", strict=True)
    counters = writer[DATABASE]["postroom_counter"]
    for forged in (-1, Int64(2**63 - 1), "many", 1.5):
        with pytest.raises(WriteError, match="validation"):
            counters.update_one({}, {"$set": {"last": forged}})
    counters.update_one({}, {"$set": {"last": Int64(2**62)}})
    with pytest.raises(OperationFailure, match="validation"):
        add(writer, "one", strict=True)
    add(writer, "three", strict=True)


# X-H2
@pytest.mark.promise("G7", "F1")
async def test_a_document_in_the_lane_of_another_key_is_a_dead_letter(writer, store):
    add(writer, "first", "one", "last")
    outbox = writer[DATABASE]["postroom_outbox"]
    lane = (outbox.find_one({"_id": "one"})["lane"] + 1) % 64
    outbox.update_one({"_id": "one"}, {"$set": {"lane": lane}})
    broker = MemoryBroker()
    async with Relay(store, broker, **QUICK) as relay:
        await until(lambda: relay.counts.dead == 1)
        await until(lambda: relay.counts.done == 2)
        record = await store.get("one")
    assert sorted(ids(broker)) == ["first", "last"]
    assert f"lane is {lane}, but its key belongs to lane" in record.last_error
