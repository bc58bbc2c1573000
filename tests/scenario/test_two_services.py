"""Two services in one database, each with tables of its own: what one does is in its own tables (R-A3, X-H4)."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from uuid import uuid4

import psycopg
import pytest
from pymongo import MongoClient

from postroom import Consumer, Event, Handlers, transactions
from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.lookup import Filter
from postroom.model.envelope import ID, KEY, KSEQ, OUTBOX, TYPE
from postroom.model.incoming import Incoming
from postroom.registry import load_store
from postroom.retry import Constant, RetryPolicy
from postroom.sources.memory import MemoryQueue, MemorySource
from postroom.transaction import Acceptance
from tests.contract.mongo_database import url_of
from tests.contract.mysql_database import own_database
from tests.scenario.place import until
from tests.scenario.postgres_place import own_schema
from tests.scenario.test_postgres_roles import CONSUMER, RELAY

QUICKLY = {"retry": RetryPolicy(max_attempts=2, backoff=Constant(0.01))}


@contextmanager
def sqlite(request):
    url = f"sqlite:///{request.getfixturevalue('tmp_path')}/shop.db"
    yield url, f"{url}?prefix=pay_"


@contextmanager
def postgres(request):
    with own_schema(request.getfixturevalue("postgres_url")) as url:
        yield url, f"{url}&prefix=pay_"


@contextmanager
def mysql(request):
    with own_database(request.getfixturevalue("mariadb_url")) as database:
        yield database.url, f"{database.url}?prefix=pay_"


@contextmanager
def schema(request):
    """The other service's schema is where the role looks first; ours is found by its name only."""
    server = request.getfixturevalue("postgres_url")
    with own_schema(server) as url, own_schema(server) as other:
        name = other.rpartition("%3D")[2]
        yield url, f"{url}&schema={name}"


@contextmanager
def mongo(request):
    name = f"two_{uuid4().hex[:12]}"
    url = url_of(request.getfixturevalue("mongo_url"), name)
    yield url, url + ("&" if "?" in url else "?") + "prefix=pay_"
    with MongoClient(url) as client:
        client.drop_database(name)


WHERE = {"sqlite": sqlite, "postgres": postgres, "mysql": mysql, "mongo": mongo, "schema": schema}


@asynccontextmanager
async def opened(other_url, our_url):
    other, ours = load_store(other_url), load_store(our_url)
    for store in (other, ours):
        await store.migrate()
        await store.open()
    try:
        yield other, ours, our_url
    finally:
        await other.close()
        await ours.close()


@pytest.fixture(params=WHERE)
async def services(request):
    with WHERE[request.param](request) as urls:
        async with opened(*urls) as found:
            yield found


def message(event_id, event_type, key="k", **headers):
    known = {ID: event_id, TYPE: event_type, KEY: key, "content-type": "application/json"}
    return Incoming("orders", b"{}", known | headers)


async def seen(store, *marks):
    """How many of these notes are in the inbox of a store."""
    async with store.transaction() as tx:
        adapter = transactions.resolve(tx, store.tables.qualified)
        return await adapter.count_done([Acceptance(*mark, "t", None) for mark in marks])


async def ids(store):
    return sorted(record.id for record in await store.find(Filter(stream="main", limit=99)))


@pytest.mark.promise("G6", "F4")
@pytest.mark.parametrize(
    "options",
    [{}, {"mode": "durable"}, {"batch": 5}],
    ids=["direct", "durable", "batch"],
)
async def test_what_a_consumer_writes_is_in_the_tables_of_its_store(services, options):
    other, ours, our_url = services
    handlers = Handlers(name="pay", concurrency=1 if "batch" in options else 10)

    @handlers.on("a")
    async def charge(event, tx, context):
        await context.add(Event("charged", id=f"of-{event.id}", key=event.key))

    @handlers.on("s")
    def mail(event, tx, context):
        context.add(Event("mailed", id=f"of-{event.id}", key=event.key))

    queue = MemoryQueue()
    numbers = [f"m-{n}" for n in range(4)]
    queue.send(*(message(each, "as"[n % 2], str(n)) for n, each in enumerate(numbers)))
    queue.send(message("m-x", "nobody"))
    async with Consumer(MemorySource(queue), our_url, handlers, **QUICKLY, **options):
        added = [f"of-{each}" for each in numbers]

        async def all_done():
            return await ids(ours) == added and queue.is_empty

        await until(all_done, 30)
    (dead,) = await ours.find(Filter(stream="inbox.pay", state="dead", limit=9))
    assert dead.id.endswith("m-x")
    marks = [("pay/" + ("charge", "mail")[n % 2], each) for n, each in enumerate(numbers)]
    assert await seen(ours, *marks) == 4
    assert await seen(other, *marks) == 0
    assert await other.find(Filter(limit=9)) == []
    await ours.bury([dead.id], "")
    broker = MemoryBroker()
    await Relay(ours, broker).drain()
    assert sorted(m.record.id for m in broker.messages) == added


@pytest.mark.promise("I4")
async def test_high_water_marks_are_in_the_tables_of_the_store(services):
    other, ours, our_url = services
    done = []

    def strict():
        handlers = Handlers(name="pay", strict="first")

        @handlers.on("a")
        async def charge(event, tx):
            done.append((event.id, event.kseq))

        return handlers

    queue = MemoryQueue()
    numbered = [message(f"m-{n}", "a", **{KSEQ: str(n), OUTBOX: "shop"}) for n in (1, 2)]
    queue.send(*numbered)
    async with Consumer(MemorySource(queue), our_url, strict(), mode="durable", **QUICKLY):
        await until(lambda: len(done) == 2, 30)
    # In the other store the key has not begun.
    queue.send(
        *(each._replace(headers={**each.headers, ID: each.headers[ID] + "'"}) for each in numbered)
    )
    async with Consumer(MemorySource(queue), other, strict(), mode="durable", **QUICKLY):
        await until(lambda: len(done) == 4, 30)
    assert [number for _, number in done] == [1, 2, 1, 2]


@pytest.fixture
def as_consumer(postgres_url):
    """A role with the rights that the page gives a consumer, in a schema off the search_path."""
    with own_schema(postgres_url) as url:
        schema_name, role = url.rpartition("%3D")[2], f"r_{uuid4().hex[:12]}"
        with psycopg.connect(postgres_url, autocommit=True) as server:
            server.execute(f"CREATE ROLE {role} LOGIN")
        yield role, schema_name, f"{postgres_url}?schema={schema_name}"
        with psycopg.connect(postgres_url, autocommit=True) as server:
            server.execute(f"DROP OWNED BY {role}")
            server.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("mode", ["direct", "durable"])
@pytest.mark.parametrize("own", [False, True], ids=["the store's transactions", "one's own"])
async def test_a_role_with_few_rights_can_consume(as_consumer, postgres_url, mode, own):
    """X-H4: as the page about roles describes it."""
    role, schema_name, admin_url = as_consumer
    store = load_store(admin_url)
    await store.migrate()
    with psycopg.connect(postgres_url, autocommit=True) as server:
        for grant in (RELAY, CONSUMER):
            server.execute(grant.format(schema=schema_name, role=role))
    url = admin_url.replace("postgres@", f"{role}@")

    @asynccontextmanager
    async def transaction():
        plain = url.partition("?")[0]
        async with await psycopg.AsyncConnection.connect(plain) as conn, conn.transaction():
            yield conn

    handlers = Handlers(name="pay", **({"transaction": transaction} if own else {}))

    @handlers.on("a")
    async def charge(event, tx, context):
        await context.add(Event("charged", id=f"of-{event.id}"))

    queue = MemoryQueue()
    queue.send(message("m-1", "a"), message("m-2", "nobody"))
    await store.open()
    async with Consumer(MemorySource(queue), url, handlers, mode=mode, **QUICKLY):

        async def all_done():
            return await ids(store) == ["of-m-1"] and queue.is_empty

        await until(all_done, 30)
    assert await seen(store, ("pay/charge", "m-1")) == 1
    assert len(await store.find(Filter(stream="inbox.pay", state="dead", limit=9))) == 1
    await store.close()


@pytest.mark.promise("F4")
@pytest.mark.parametrize("mode", ["direct", "durable"])
async def test_two_services_without_a_name_each_do_every_message(services, mode):
    """R-A7: both have a function `handle` for one type, and share all tables."""
    _, _, url = services
    done = []

    def service(what):
        handlers = Handlers()

        @handlers.on("order.created")
        async def handle(event, tx):
            done.append((what, event.id))

        queue = MemoryQueue()
        queue.send(*(message(f"m-{n}", "order.created", str(n)) for n in range(6)))
        return Consumer(MemorySource(queue, name=what), url, handlers, mode=mode, **QUICKLY)

    async with service("charge"), service("mail"):
        await until(lambda: len(done) == 12, 30)
    assert sorted(set(done)) == sorted(done)
