"""Roles with no more rights than they need: one for writers, one for relays."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import StoreError
from postroom.inbox import Inbox
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.store import ReadRequest
from postroom.stores.postgres import PostgresStore
from postroom.stores.postgres.floors import Floors
from postroom.testing.store.tools import ALL, Hand, event, keys_of_lane, names
from postroom.testing.transaction_tools import Note
from tests.scenario.place import QUICK, until
from tests.scenario.postgres_place import opened, own_schema

PAGE = Path(__file__).parents[2] / "docs/how-to/postgresql.md"
(COLUMNS,) = re.findall(r"GRANT INSERT \(([^)]*)\)\s+ON app.postroom_outbox", PAGE.read_text())
WRITER = f"""
GRANT USAGE ON SCHEMA {{schema}} TO {{role}};
GRANT INSERT ({COLUMNS}) ON {{schema}}.postroom_outbox TO {{role}};
"""
ROW = {
    "id": "'forged'", "lane": "1", "key_hash": "set_byte(decode(md5('k'), 'hex'), 0, 1)",
    "type": "'t'", "topic": "'t'", "payload": "'null'", "content_type": "'application/json'",
    "size": "4", "occurred_at": "now()", "created_at": "now()",
}  # fmt: skip
STRICT = "GRANT SELECT, INSERT, UPDATE ON {schema}.postroom_counter TO {role};"
CONSUMER = "GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.postroom_inbox TO {role};"
RELAY = """
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.postroom_meta TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE
    ON {schema}.postroom_outbox, {schema}.postroom_lease, {schema}.postroom_member, {schema}.postroom_block,
    {schema}.postroom_control, {schema}.postroom_operation TO {role};
GRANT INSERT ON {schema}.postroom_audit TO {role};
GRANT SELECT, INSERT, UPDATE ON {schema}.postroom_counter TO {role};
GRANT SELECT ON SEQUENCE {schema}.postroom_outbox_seq_seq TO {role};
"""


@pytest.fixture(params=["postgres_url", "postgres18_url"])
def server_url(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
async def admin_url(server_url):
    with own_schema(server_url) as url:
        await PostgresStore(url).migrate()
        yield url


@pytest.fixture
def role(server_url, admin_url):
    """Make a role with the rights of some grants; gives the URL to connect with as this role."""
    schema = admin_url.rpartition("%3D")[2]
    made = []

    def role(*grants):
        name = f"r_{uuid4().hex[:12]}"
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {name} LOGIN")
            made.append(name)
            for grant in grants:
                connection.execute(grant.format(schema=schema, role=name))
        return admin_url.replace("postgres@", f"{name}@")

    yield role
    with psycopg.connect(server_url, autocommit=True) as connection:
        for name in made:
            connection.execute(f"DROP OWNED BY {name}")
            connection.execute(f"DROP ROLE {name}")


async def write(url, *events, strict=False):
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await Outbox(ordering="strict" if strict else "keyed").add_many(connection, events)


@pytest.mark.promise("W5")
async def test_a_writer_needs_insert_and_nothing_else(admin_url, role):
    url = role(WRITER)
    await write(url, event("one", "k"))
    await write(url, event("two", "k"), event("three", "k"))
    async with opened(admin_url, migrate=False) as store:
        assert names(await store.find(Filter())) == ["one", "two", "three"]
    async with await psycopg.AsyncConnection.connect(url) as connection:
        for sql in ("SELECT * FROM postroom_outbox", "DELETE FROM postroom_outbox"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await connection.execute(sql)
            await connection.rollback()


@pytest.mark.parametrize(
    "forged",
    [
        {"seq": "1000000"},
        {"seq": "-5"},
        {"attempts": "2147483647"},
        {"state": "'done'", "stage": "'over'", "settled_at": "now()"},
        {"last_error": "'it was the relay'"},
        {"lease_owner": "'anna'"},
    ],
    ids=lambda forged: next(iter(forged)),
)
async def test_a_writer_can_forge_nothing_that_is_the_relays(admin_url, role, forged):  # X-H2
    url = role(WRITER)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await insert(connection, ROW | forged)
        await connection.rollback()
        await insert(connection, ROW)  # the row is good without it
    await write(url, event("honest", "k"))
    async with opened(admin_url, migrate=False) as store:
        assert names(await store.find(Filter())) == ["forged", "honest"]


@pytest.mark.parametrize(
    "forged",
    [
        {"seq": "0"},
        {"seq": "-5"},
        {"attempts": "1000000"},
        {"attempts": "2147483647"},
        {"size": "0"},
        {"size": "17"},
        {"size": "2147483647"},
        {"lane": "2"},
    ],
    ids=str,
)
async def test_nobody_can_store_what_cannot_be(admin_url, forged):  # X-H2
    async with await psycopg.AsyncConnection.connect(admin_url) as connection:
        with pytest.raises(psycopg.errors.CheckViolation):
            await insert(connection, ROW | forged)


async def insert(connection, row):
    names, values = ", ".join(row), ", ".join(row.values())
    override = "OVERRIDING SYSTEM VALUE" if "seq" in row else ""
    await connection.execute(f"INSERT INTO postroom_outbox ({names}) {override} VALUES ({values})")


@pytest.mark.promise("W9")
async def test_a_strict_writer_needs_the_counters_too(admin_url, role):
    with pytest.raises(Exception, match="postroom_counter"):
        await write(role(WRITER), event("one", "k"), strict=True)
    await write(role(WRITER, STRICT), event("one", "k"), event("two", "k"), strict=True)
    async with opened(admin_url, migrate=False) as store:
        assert [r.kseq for r in await store.find(Filter())] == [1, 2]


FOREIGN = {
    "strict": (
        "DELETE FROM postroom_counter",
        "UPDATE postroom_outbox SET state = 'done'",
        "SELECT * FROM postroom_outbox",
        "UPDATE postroom_lease SET token = 1",
        "SELECT * FROM postroom_inbox",
    ),
    "consumer": (
        "UPDATE postroom_outbox SET state = 'done'",
        "DELETE FROM postroom_outbox",
        "UPDATE postroom_counter SET last = 1",
        "UPDATE postroom_lease SET owner = 'me'",
        "INSERT INTO postroom_block VALUES ('main', '', 0, 1, NULL, NULL, now())",
        "SELECT * FROM postroom_audit",
        "TRUNCATE postroom_inbox",
    ),
}


@pytest.mark.parametrize("who", FOREIGN)
async def test_strict_writers_and_consumers_reach_nothing_else(admin_url, role, who):  # X-H2
    url = role(WRITER, STRICT if who == "strict" else CONSUMER)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        for statement in FOREIGN[who]:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await connection.execute(statement)
            await connection.rollback()


@pytest.mark.promise("W9", "F1")
async def test_a_counter_that_a_strict_writer_has_set_costs_its_key_alone(admin_url, role):  # X-H2
    url = role(WRITER, STRICT)
    await write(url, event("one", "k"), strict=True)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        for forged in ("-1", "9223372036854775807"):
            with pytest.raises(psycopg.errors.CheckViolation):
                await connection.execute(f"UPDATE postroom_counter SET last = {forged}")
            await connection.rollback()
        await connection.execute("UPDATE postroom_counter SET last = 4611686018427387904")
    with pytest.raises(psycopg.errors.CheckViolation):
        await write(url, event("two", "k"), strict=True)
    await write(url, event("three", "other"), strict=True)
    async with opened(admin_url, migrate=False) as store:
        assert names(await store.find(Filter())) == ["one", "three"]


@pytest.mark.promise("I1", "F1")
async def test_odd_inbox_rows_of_one_consumer_cost_no_other(admin_url, role):  # X-H2
    url = role(WRITER, CONSUMER)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        assert await Inbox("payments").accept(connection, Note("m-1")) is True
        await connection.execute(
            "UPDATE postroom_inbox SET processed_at = 'infinity', received_at = '-infinity'"
        )
        await connection.execute(
            "INSERT INTO postroom_inbox VALUES ('', '', '', NULL, 'done', 'infinity', NULL)"
        )
        assert await Inbox("payments").accept(connection, Note("m-1")) is False
        assert await Inbox("payments").accept(connection, Note("m-2")) is True
        assert await Inbox("mail").accept(connection, Note("m-1")) is True


@pytest.mark.req("S5.4")
async def test_a_consumer_needs_the_inbox(role):
    url = role(WRITER, CONSUMER)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        assert await Inbox("payments").accept(connection, Note("m-1")) is True
        assert await Inbox("payments").accept(connection, Note("m-1")) is False


async def test_a_relay_needs_the_rights_that_are_written_down(admin_url, role):
    url = role(RELAY)
    await write(admin_url, *(event(f"e{n}", f"k{n % 5}") for n in range(20)), strict=True)
    broker = MemoryBroker()
    async with Relay(url, broker, **QUICK) as relay:
        await until(lambda: relay.counts.done == 20)
    async with opened(url, migrate=False) as store:
        (key,) = keys_of_lane(7, 1)
        await write(admin_url, event("a", key), event("b", key), strict=True)
        hand = await Hand(store).take()
        head, follower = await hand.read()
        await hand.fail(head)
        await hand.settle(parked=[follower])
        await hand.stage()
        await store.repair_blocks("main", "anna", hand.held, 10)
        await store.skip("a", "not wanted")
        await store.replay(["a"], new_id=True)
        await store.bury(["b"], "neither")
        assert await store.prune(0.0, 100) == 20
        assert (await store.stats()).counts["dead"] == 2
        store._floors = Floors(slow_seconds=0.0, slow_reads=1)
        hand.held = await store.take("main", "anna", ALL, 60)
        await store.read(ReadRequest("main", list(hand.held), 9, 9, 9, (), "anna", hand.held))
        assert store._floors.epoch is not None


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("GRANT SELECT ON {schema}.postroom_meta TO {role};", "GRANT SELECT ON postroom_meta"),
        ("GRANT USAGE ON SCHEMA {schema} TO {role};", "missing|GRANT USAGE"),
    ],
)
async def test_a_right_that_is_missing_at_the_start_is_named(role, missing, told):
    url = role(RELAY.replace(missing, ""))
    with pytest.raises(Exception, match=told):
        await PostgresStore(url).open()


@pytest.mark.parametrize(
    ("revoked", "call", "told"),
    [
        (
            "ALL ON postroom_outbox",
            lambda store: store.find(Filter()),
            (
                "permission denied for table postroom_outbox. A relay needs: "
                "GRANT SELECT, INSERT, UPDATE, DELETE ON postroom_outbox TO its role"
            ),
        ),
        (
            "UPDATE ON postroom_lease",
            lambda store: store.take("main", "anna", ALL, 1),
            "GRANT SELECT, INSERT, UPDATE, DELETE ON postroom_lease",
        ),
        (
            "EXECUTE ON FUNCTION postroom_read3",
            lambda store: Hand(store).read(),
            "GRANT EXECUTE ON FUNCTION postroom_read3",
        ),
    ],
)
async def test_a_right_that_is_taken_away_is_named(admin_url, role, revoked, call, told):
    url = role(RELAY)
    name = url.partition("//")[2].partition("@")[0]
    async with opened(url, migrate=False) as store:
        with psycopg.connect(admin_url, autocommit=True) as connection:
            connection.execute(f"REVOKE {revoked} FROM {name}, PUBLIC")
        with pytest.raises(StoreError) as raised:
            await call(store)
    assert told in str(raised.value)
