"""Hand-written outbox tables on PostgreSQL become ours with their rows, also while writers go on."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import psycopg
import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import ConfigError, StoreError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.record import key_hash, lane_of
from postroom.store import Adopted
from postroom.testing.broker_tools import HOSTILE
from tests.cli.command import call
from tests.scenario.place import until
from tests.scenario.postgres_place import opened, own_schema, writing

OLD_TABLE = """
CREATE TABLE outbox (
    id              bigserial PRIMARY KEY,
    event_id        text NOT NULL,
    aggregate_type  text NOT NULL DEFAULT 'user',
    aggregate_id    text NOT NULL,
    event_type      text NOT NULL DEFAULT 'user.created',
    payload         jsonb,
    status          text DEFAULT 'pending',
    attempts        integer DEFAULT 0,
    next_attempt_at timestamptz DEFAULT now(),
    created_at      timestamp DEFAULT '2024-02-29 12:00:00',
    last_error      text
)
"""
PLAIN = """
CREATE TABLE messages (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    kind       varchar(80) NOT NULL,
    "routing key" text,
    body       text NOT NULL,
    inserted   timestamptz NOT NULL DEFAULT clock_timestamp(),
    published  timestamptz
)
"""
PLAIN_COLUMNS = {
    "event_type": "kind",
    "aggregate_id": "routing key",
    "payload": "body",
    "created_at": "inserted",
    "sent_at": "published",
}


class Database:
    def __init__(self, url):
        self.url = url

    def run(self, sql, *values):
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

    def fill(self, rows):
        """Write (event_id, aggregate_id, status, attempts) rows."""
        with psycopg.connect(self.url) as connection:
            for event_id, key, status, attempts in rows:
                connection.execute(
                    "INSERT INTO outbox (event_id, aggregate_id, payload, status, attempts, "
                    "last_error) VALUES (%s, %s, %s, %s, %s, %s)",
                    (
                        event_id,
                        key,
                        json.dumps({"n": f"{event_id} 🦊"}),
                        status,
                        attempts,
                        "boom" if attempts else None,
                    ),
                )

    @asynccontextmanager
    async def store(self):
        async with opened(self.url) as store:
            yield store

    async def add(self, event):
        async with writing(self.url) as connection:
            await Outbox().add(connection, event)


@pytest.fixture
def database(postgres_url):
    with own_schema(postgres_url) as url:
        made = Database(url)
        made.run(OLD_TABLE)
        yield made


async def events(store):
    return await store.find(Filter())


async def ids(store):
    return [record.id for record in await events(store)]


@pytest.mark.req("S4.1")
async def test_rows_keep_their_ids_numbers_order_attempts_and_payload(database):
    database.fill(
        [
            ("user-created-1", "7", "sent", 1),
            ("user-created-2", "7", "failed", 5),
            ("user-created-3", "8", "failed", 2),
            ("user-created-4", "7", "sending", 1),
            ("user-created-5", "8", "PENDING", 0),
        ]
    )
    async with database.store() as store:
        assert await store.adopt("outbox", topic="users", time_zone="+02:00") == Adopted(5, 0)
        found = await events(store)
    assert [(r.seq, r.id, r.state, r.attempts) for r in found] == [
        (1, "user-created-1", "done", 1),
        (2, "user-created-2", "dead", 5),
        (3, "user-created-3", "failed", 2),
        (4, "user-created-4", "pending", 1),
        (5, "user-created-5", "pending", 0),
    ]
    assert {(r.type, r.topic, r.stream, r.aggregate_type) for r in found} == {
        ("user.created", "users", "main", "user")
    }
    assert [r.aggregate_id for r in found] == [r.key for r in found] == ["7", "7", "8", "7", "8"]
    assert found[3].data == {"n": "user-created-4 🦊"}
    assert found[2].last_error == "boom"
    assert str(found[0].created_at) == "2024-02-29 10:00:00+00:00"
    assert database.run("SELECT count(*) FROM outbox") == [(0,)]


async def test_a_plain_table_with_uuids_and_names_of_its_own(database):
    database.run(PLAIN)
    with psycopg.connect(database.url, autocommit=True) as connection:
        for n in range(6):
            connection.execute(
                'INSERT INTO messages (kind, "routing key", body, published) '
                "VALUES ('order.placed', %s, %s, CASE WHEN %s THEN now() END)",
                ("k" if n % 2 else None, json.dumps({"n": n}), n == 0),
            )
    uuids = [str(u) for (u,) in database.run("SELECT id FROM messages ORDER BY inserted")]
    async with database.store() as store:
        await database.add(Event("t", id="first"))  # it was here before, and keeps its place
        moved = await store.adopt("messages", columns=PLAIN_COLUMNS, step=4)
        found = await events(store)
    assert moved == Adopted(6, 0)
    assert [r.id for r in found] == ["first", *uuids]
    assert [(r.key, r.data["n"], r.state) for r in found[1:]] == [
        (None, 0, "done"),
        ("k", 1, "pending"),
        (None, 2, "pending"),
        ("k", 3, "pending"),
        (None, 4, "pending"),
        ("k", 5, "pending"),
    ]
    for record in found[1:]:
        assert record.key_hash == key_hash(None, record.key, record.id)


async def test_binary_payloads_and_topics_of_rows(database):
    database.run(
        "CREATE TABLE raw (id int PRIMARY KEY, event_type text, payload bytea, topic text, done boolean)"
    )
    database.run(
        "INSERT INTO raw VALUES (1, 'a', '\\xff00', 'mine', false), (2, 'b', '', '', true)"
    )
    async with database.store() as store:
        statuses = {"true": "done", "false": "pending"}
        await store.adopt("raw", columns={"status": "done"}, statuses=statuses, topic="common")
        found = await events(store)
    assert [(r.id, r.topic, r.payload, r.content_type, r.state) for r in found] == [
        ("1", "mine", b"\xff\x00", "application/octet-stream", "pending"),
        ("2", "common", b"", "application/octet-stream", "done"),
    ]


@pytest.mark.req("S4.1", "S4.6")
@pytest.mark.promise("W10")
async def test_the_hash_that_sql_computes_is_the_librarys_own(database):
    keys = [text for text in HOSTILE if 0 < len(text.encode()) <= 255 and "\x00" not in text]
    database.fill([(f"e{n}", key, "pending", 0) for n, key in enumerate([*keys, "", "0"])])
    database.run("UPDATE outbox SET aggregate_type = 'order 🦊' WHERE id = 1")
    async with database.store() as store:
        await store.adopt("outbox")
        found = await events(store)
    assert [r.key for r in found] == [*keys, None, "0"]
    for record in found:
        kind = "order 🦊" if record.seq == 1 else "user" if record.key else None
        assert record.key_hash == key_hash(kind, record.key, record.id)
        assert record.lane == lane_of(record.key_hash)


# -- writers and relays ----------------------------------------------------------------------------
@pytest.mark.req("S4.1", "S4.6")
@pytest.mark.promise("G2", "G4")
async def test_a_live_table_is_adopted_while_old_and_new_writers_go_on(database):
    """The switch of a running service: old writers, both kinds, new writers only; then a relay."""
    old_count, new_count, keys = 150, 150, 5
    half = asyncio.Event()

    async def old_writer(key):
        async with await psycopg.AsyncConnection.connect(database.url) as connection:
            for n in range(old_count):
                async with connection.transaction():
                    await connection.execute(
                        "INSERT INTO outbox (event_id, aggregate_id, payload) VALUES (%s, %s, %s)",
                        (f"{key}-old-{n:03}", key, json.dumps({"n": n})),
                    )
                    if n % 20 == 7:  # it holds its transaction open over some steps of an adoption
                        await asyncio.sleep(0.02)
                if n == old_count // 2:
                    half.set()

    async def new_writer(key):
        async with await psycopg.AsyncConnection.connect(database.url) as connection:
            for n in range(new_count):
                async with connection.transaction():
                    event = Event(
                        "user.created", id=f"{key}-new-{n:03}", key=key, aggregate_type="user"
                    )
                    await Outbox().add(connection, event)

    async def service(key):
        """Each process of the service is replaced: what it writes by then is written by the new."""
        await old_writer(key)
        await new_writer(key)

    async with database.store() as store:
        names = [f"k{n}" for n in range(keys)]
        working = asyncio.gather(*map(service, names))
        await half.wait()
        moved = 0
        while not working.done():  # noqa: ASYNC110 - adoptions run beside the writers
            moved += (await store.adopt("outbox", step=7)).moved
        await working
        last = await store.adopt("outbox", step=7)
        assert moved + last.moved == keys * old_count
        assert last.left == 0
        broker = MemoryBroker()
        await Relay(store, broker).drain()
    sent = [message.record.id for message in broker.messages]
    assert len(sent) == len(set(sent)) == keys * (old_count + new_count)
    for key in names:
        expected = [f"{key}-old-{n:03}" for n in range(old_count)]
        expected += [f"{key}-new-{n:03}" for n in range(new_count)]
        assert [name for name in sent if name.startswith(f"{key}-")] == expected


@pytest.mark.promise("G2")
async def test_a_row_that_is_committed_late_waits_for_the_next_run(database):
    database.fill([("e1", "k", "pending", 0)])
    async with database.store() as store:
        async with await psycopg.AsyncConnection.connect(database.url) as late:
            insert = (
                "INSERT INTO outbox (event_id, aggregate_id, payload) VALUES ('late', 'l', '1')"
            )
            await late.execute(insert)
            database.fill([("e3", "k", "pending", 0)])
            assert await store.adopt("outbox") == Adopted(2, 0)
            await late.commit()
        assert await store.adopt("outbox") == Adopted(1, 0)
        assert [(r.seq, r.id) for r in await events(store)] == [(1, "e1"), (2, "late"), (3, "e3")]


async def test_two_that_adopt_at_once_move_every_row_once(database):
    database.fill([(f"e{n}", str(n % 7), "pending", 0) for n in range(60)])
    async with database.store() as one, database.store() as other:
        done = await asyncio.gather(one.adopt("outbox", step=5), other.adopt("outbox", step=5))
        assert sum(adopted.moved for adopted in done) == 60
        assert await ids(one) == [f"e{n}" for n in range(60)]


@pytest.mark.promise("G4")
async def test_nothing_is_adopted_while_a_relay_serves_the_stream(database):
    database.fill([("old-1", "k", "pending", 0)])
    async with database.store() as store, database.store() as another:
        await store.adopt("outbox")
        broker = MemoryBroker()
        async with Relay(another, broker, name="box-1", poll_seconds=0.02) as relay:
            await until(lambda: relay.counts.done == 1)
            database.fill([("old-2", "k", "pending", 0)])
            with pytest.raises(StoreError, match=r"relays serve the stream 'main': box-1.*--force"):
                await store.adopt("outbox")
            assert await store.adopt("outbox", stream="other") == Adopted(1, 0)
            await database.add(Event("t", id="new", key="k"))
            await until(lambda: relay.counts.done == 2)
            database.fill([("old-3", "l", "pending", 0)])
            assert await store.adopt("outbox", force=True) == Adopted(1, 0)
            await until(lambda: relay.counts.done == 3)  # although its number is the lower one
        database.fill([("old-4", "k", "pending", 0)])
        assert await store.adopt("outbox") == Adopted(1, 0)  # it has left


@pytest.mark.promise("G4")
async def test_a_relay_that_starts_meanwhile_ends_it(database):
    database.fill([(f"e{n}", "k", "pending", 0) for n in range(4)])
    async with database.store() as store:

        def relay_starts(_):
            database.run(
                "INSERT INTO postroom_member (stream, owner, until, length)"
                " VALUES ('main', 'late', now() + interval '60 s', interval '60 s')"
            )

        with pytest.raises(StoreError, match="relays serve the stream 'main': late"):
            await store.adopt("outbox", step=1, on_moved=relay_starts)
        assert len(await events(store)) == 1


async def test_it_goes_on_where_it_was_interrupted(database):
    database.fill([(f"e{n}", str(n % 3), "pending", 0) for n in range(10)])
    async with database.store() as store:

        def interrupt(_):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await store.adopt("outbox", step=4, on_moved=interrupt)
        assert database.run("SELECT count(*) FROM outbox") == [(6,)]
        assert await store.adopt("outbox", step=4) == Adopted(6, 0)
        assert await ids(store) == [f"e{n}" for n in range(10)]


async def test_rows_that_something_else_keeps_are_not_moved(database):
    """A trigger of the old table that refuses deletes: the row must not be in both tables."""
    database.fill([("e1", "k", "pending", 0)])
    database.run(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    )
    database.run("CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION keep()")
    async with database.store() as store:
        with pytest.raises(StoreError, match="1 written and 0 deleted; nothing was moved"):
            await store.adopt("outbox")
        assert await events(store) == []


# -- refused ---------------------------------------------------------------------------------------
async def test_sent_rows_may_stay(database):
    database.fill([("e1", "k", "sent", 1), ("e2", "k", "pending", 0)])
    async with database.store() as store:
        assert await store.adopt("outbox", sent=False) == Adopted(1, 1)
        assert await ids(store) == ["e2"]


async def test_a_known_id_stays_where_it_is(database):
    database.fill([("e1", "k", "pending", 0), ("e2", "k", "pending", 0)])
    async with database.store() as store:
        await database.add(Event("t", id="e1"))
        assert await store.adopt("outbox", keep_numbers=False) == Adopted(1, 1)
        assert await ids(store) == ["e1", "e2"]


async def test_a_number_that_is_taken_is_refused_and_nothing_moves(database):
    database.fill([("e1", "k", "pending", 0)])
    async with database.store() as store:
        await database.add(Event("t", id="new"))
        with pytest.raises(StoreError, match="keep_numbers=False"):
            await store.adopt("outbox")
        assert database.run("SELECT count(*) FROM outbox") == [(1,)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("aggregate_id = repeat('é', 200)", "aggregate_id has more than 255 bytes"),
        ("payload = NULL", "payload is NULL"),
        ("event_id = 'e1'", "another row has the same event_id"),
        ("id = 0", "its id is below 1"),
    ],
)
async def test_a_row_that_does_not_fit_is_refused_before_anything_moves(database, change, why):
    database.fill([("e1", "k", "pending", 0), ("e2", "k", "pending", 0)])
    database.run(f"UPDATE outbox SET {change} WHERE event_id = 'e2'")
    async with database.store() as store:
        with pytest.raises(StoreError, match=rf"row \d of outbox does not fit: {why}"):
            await store.adopt("outbox")
        assert await events(store) == []


async def test_unknown_statuses_are_refused_before_anything_moves(database):
    named = ["pending", "published", "published", "cancelled", "SENT"]
    database.fill([(f"e{n}", "k", status, 0) for n, status in enumerate(named)])
    database.run("UPDATE outbox SET status = NULL WHERE event_id = 'e0'")
    async with database.store() as store:
        told = r"'NULL' \(1 rows\), 'cancelled' \(1 rows\), 'published' \(2 rows\)"
        with pytest.raises(StoreError, match=told):
            await store.adopt("outbox")
        assert await events(store) == []
        meaning = {"published": "done", "cancelled": "dead", "NULL": "pending"}
        assert await store.adopt("outbox", statuses=meaning) == Adopted(5, 0)
        found = {record.id: record.state for record in await events(store)}
    assert found == {"e0": "pending", "e1": "done", "e2": "done", "e3": "dead", "e4": "done"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"columns": {"kind": "x"}}, "no column 'kind' is moved; use one of id, event_id"),
        ({"columns": {"payload": "body"}}, "outbox has no column 'body'; it has id, event_id"),
        ({"time_zone": "Nowhere/Land"}, "does not know the time zone 'Nowhere/Land'"),
        ({"statuses": {"published": "sent"}}, "'published' cannot become 'sent'"),
        ({"step": 0}, "step must be 1 or more"),
    ],
)
async def test_wrong_options_are_refused(database, options, told):
    async with database.store() as store:
        with pytest.raises(ConfigError, match=told):
            await store.adopt("outbox", **options)


@pytest.mark.parametrize(
    ("table", "options", "told"),
    [
        ("messages", {}, "no column 'event_type'"),
        ("messages", {"columns": {"event_type": "kind", "payload": "body"}}, "order .* is unknown"),
        ("outbox", {"columns": {"id": "payload"}}, "order|cannot be kept"),
        ("messages", {"columns": PLAIN_COLUMNS, "keep_numbers": True}, "cannot be kept"),
        ("plain", {}, "--status NULL=pending"),
        ('a"b', {}, "use letters, digits"),
    ],
)
async def test_tables_that_cannot_be_adopted_are_refused(database, table, options, told):
    database.run(PLAIN)
    database.run("CREATE TABLE plain (id int, event_type text, payload json)")
    if table == "messages" and "created_at" not in options.get("columns", {}):
        database.run("ALTER TABLE messages RENAME published TO sent_at")
    if options.get("columns") == {"id": "payload"}:
        database.run("ALTER TABLE outbox DROP created_at")
    async with database.store() as store:
        with pytest.raises(ConfigError, match=told):
            await store.adopt(table, **options)


async def test_times_without_a_zone_are_those_of_the_servers_sessions(database):
    database.fill([("e1", "k", "pending", 0)])
    database.run("UPDATE outbox SET created_at = now()")
    async with database.store() as store:
        await store.adopt("outbox")
        (record,) = await events(store)
    assert abs((datetime.now(UTC) - record.created_at).total_seconds()) < 60


@pytest.mark.req("S4.1")
async def test_by_the_command_line(database, tmp_path):
    database.run(PLAIN)
    database.run("INSERT INTO messages (kind, body) VALUES ('order.placed', '{}')")
    words = ["migrate", "adopt", "--store", database.url, "--table"]
    assert call("migrate", "--store", database.url, cwd=tmp_path).returncode == 0
    missing = call(*words, "messages", cwd=tmp_path)
    assert missing.returncode == 2
    assert "--column event_type=…" in missing.stderr
    given = [f"--column={ours}={theirs}" for ours, theirs in PLAIN_COLUMNS.items()]
    done = call(*words, "messages", *given, "--topic", "orders", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "moved 1 rows of messages into the outbox\n")
    async with database.store() as store:
        assert [(r.type, r.topic) for r in await events(store)] == [("order.placed", "orders")]
    wrong = call(*words, "nothing", cwd=tmp_path)
    assert wrong.returncode == 3
    assert "there is no table nothing" in wrong.stderr
    unclear = call(*words, "messages", "--column", "kind", cwd=tmp_path)
    assert unclear.returncode == 2
    assert "write it as --column event_type=kind" in unclear.stderr
