"""An outbox table of another program, as its document describes it, becomes ours with its rows."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import ConfigError, StoreError, StoreRetryableError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.record import key_hash, lane_of
from postroom.stores.mysql.adopt import Adopted, adopt, adoption_sql
from postroom.testing.broker_tools import HOSTILE
from tests.cli.command import call
from tests.contract.mysql_database import own_database
from tests.scenario.place import until

OLD_TABLE = """
CREATE TABLE outbox (
    id BIGINT AUTO_INCREMENT PRIMARY KEY,
    event_id CHAR(36) UNIQUE NOT NULL,
    aggregate_type VARCHAR(255) NOT NULL,
    aggregate_id VARCHAR(255) NOT NULL,
    event_type VARCHAR(255) NOT NULL,
    payload JSON NOT NULL,
    status ENUM('pending','sending','sent','failed') DEFAULT 'pending',
    attempts INT DEFAULT 0,
    next_attempt_at DATETIME DEFAULT NOW(),
    created_at DATETIME DEFAULT NOW(),
    last_error TEXT NULL,
    INDEX idx_status_next_attempt (status, next_attempt_at),
    INDEX idx_created_at (created_at)
) ENGINE=InnoDB DEFAULT CHARSET={charset}
"""


@pytest.fixture(params=["utf8mb4 COLLATE=utf8mb4_unicode_ci"])
def database(request, mariadb_url):
    with own_database(mariadb_url) as database:
        database.run(OLD_TABLE.format(charset=request.param))
        yield database


def fill(database, rows):
    """Write (event_id, aggregate_id, status, attempts) rows, and return nothing."""
    with database.connection(autocommit=True, charset="utf8mb4") as (_, cursor):
        cursor.executemany(
            "INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload, "
            "status, attempts, last_error, created_at) "
            "VALUES (%s, 'user', %s, 'user.created', %s, %s, %s, %s, '2024-02-29 12:00:00')",
            [
                (
                    event_id,
                    key,
                    f'{{"n": "{event_id} 🦊"}}',
                    status,
                    attempts,
                    "boom" if attempts else None,
                )
                for event_id, key, status, attempts in rows
            ],
        )


@pytest.mark.req("S4.1")
async def test_rows_keep_their_ids_order_attempts_and_payload(database):
    fill(
        database,
        [
            ("user-created-1", "7", "sent", 1),
            ("user-created-2", "7", "failed", 5),
            ("user-created-3", "8", "failed", 2),
            ("user-created-4", "7", "sending", 1),
            ("user-created-5", "8", "pending", 0),
        ],
    )
    async with database.store() as store:
        assert await adopt(store, "outbox", topic="users", time_zone="+02:00") == Adopted(5, 0)
        found = await store.find(Filter())
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
    assert found[3].payload == '{"n": "user-created-4 🦊"}'.encode()
    assert found[3].data == {"n": "user-created-4 🦊"}
    assert found[2].last_error == "boom"
    assert str(found[0].created_at) == "2024-02-29 10:00:00+00:00"
    assert database.run("SELECT COUNT(*) FROM outbox") == [(0,)]


@pytest.mark.req("S4.1", "S4.6")
@pytest.mark.promise("W10")
async def test_the_hash_that_sql_computes_is_the_librarys_own(database):
    keys = [text for text in HOSTILE if len(text.encode()) <= 255]
    fill(database, [(f"e{n}", key, "pending", 0) for n, key in enumerate(keys)])
    database.run("UPDATE outbox SET aggregate_type = 'order 🦊' WHERE id = 1")
    async with database.store() as store:
        await adopt(store, "outbox")
        found = await store.find(Filter())
    assert [r.key for r in found] == keys
    for record in found:
        kind = "order 🦊" if record.seq == 1 else "user"
        assert record.key_hash == key_hash(kind, record.key, record.id)
        assert record.lane == lane_of(record.key_hash)


@pytest.mark.promise("W10")
async def test_a_row_without_an_aggregate_is_its_own_key(database):
    fill(database, [("alone", "", "pending", 0)])
    async with database.store() as store:
        await adopt(store, "outbox")
        (record,) = await store.find(Filter())
    assert (record.key, record.aggregate_id) == (None, None)
    assert record.key_hash == key_hash(None, None, "alone")


@pytest.mark.parametrize("database", ["latin1"], indirect=True)
async def test_a_table_in_another_character_set_is_read_as_text(database):
    fill(database, [("é-1", "é", "pending", 0)])
    async with database.store() as store:
        await adopt(store, "outbox")
        (record,) = await store.find(Filter())
    assert (record.id, record.key) == ("é-1", "é")
    assert record.key_hash == key_hash("user", "é", "é-1")


@pytest.mark.req("S4.1")
async def test_it_goes_on_where_it_was_interrupted(database, monkeypatch):
    fill(database, [(f"e{n}", str(n % 3), "pending", 0) for n in range(10)])
    async with database.store() as store:
        session = type(await _session_of(store))
        execute, calls = session._commit, []

        async def third_time_unlucky(self):
            calls.append(1)
            if len(calls) == 3:
                await self._roll_back()
                raise StoreError("cut off")
            await execute(self)

        monkeypatch.setattr(session, "_commit", third_time_unlucky)
        with pytest.raises(StoreError, match="cut off"):
            await adopt(store, "outbox", step=2)
        monkeypatch.undo()
        assert len(await store.find(Filter())) == 4
        assert database.run("SELECT COUNT(*) FROM outbox") == [(6,)]
        assert await adopt(store, "outbox", step=2) == Adopted(6, 0)
        assert await adopt(store, "outbox", step=2) == Adopted(0, 0)
        assert [r.id for r in await store.find(Filter())] == [f"e{n}" for n in range(10)]


@pytest.mark.req("S4.1", "S4.6")
@pytest.mark.promise("G4")
async def test_what_the_old_writers_still_write_comes_before_what_the_new_ones_do(database):
    fill(database, [("old-1", "k", "pending", 0)])
    async with database.store() as store:
        await adopt(store, "outbox")
        fill(database, [("old-2", "k", "pending", 0)])
        async with database.writing() as connection:
            event = Event("user.created", id="new", key="k", aggregate_type="user")
            await Outbox().add(connection, event)
        assert await adopt(store, "outbox") == Adopted(1, 0)
        assert [r.id for r in await store.find(Filter())] == ["old-1", "old-2", "new"]
        broker = MemoryBroker()
        assert (await Relay(store, broker).drain()).done == 3
    assert [message.record.id for message in broker.messages] == ["old-1", "old-2", "new"]


async def test_two_that_adopt_at_once_move_every_row_once(database):
    fill(database, [(f"e{n}", str(n % 7), "pending", 0) for n in range(60)])
    async with database.store() as one, database.store() as other:
        await asyncio.gather(_patiently(one), _patiently(other))
        assert [r.id for r in await one.find(Filter())] == [f"e{n}" for n in range(60)]


async def test_sent_rows_may_stay(database):
    fill(database, [("e1", "k", "sent", 1), ("e2", "k", "pending", 0)])
    async with database.store() as store:
        assert await adopt(store, "outbox", sent=False) == Adopted(1, 1)
        assert [r.id for r in await store.find(Filter())] == ["e2"]


async def test_a_known_id_stays_where_it_is(database):
    fill(database, [("e1", "k", "pending", 0), ("e2", "k", "pending", 0)])
    async with database.store() as store:
        async with database.writing() as connection:
            await Outbox().add(connection, Event("t", id="e1"))
        assert await adopt(store, "outbox", keep_numbers=False) == Adopted(1, 1)
        assert [r.id for r in await store.find(Filter())] == ["e1", "e2"]


async def test_a_number_that_is_taken_is_refused_and_nothing_moves(database):
    fill(database, [("e1", "k", "pending", 0)])
    async with database.store() as store:
        async with database.writing() as connection:
            await Outbox().add(connection, Event("t", id="new"))
        with pytest.raises(StoreError, match="keep_numbers=False"):
            await adopt(store, "outbox")
        assert database.run("SELECT COUNT(*) FROM outbox") == [(1,)]


async def test_a_row_that_does_not_fit_is_refused_before_anything_moves(database):
    fill(database, [("e1", "k", "pending", 0), ("e2", "é" * 200, "pending", 0)])
    async with database.store() as store:
        with pytest.raises(StoreError, match=r"row 2 of outbox does not fit"):
            await adopt(store, "outbox")
        assert await store.find(Filter()) == []


@pytest.mark.parametrize("options", [{"table": "a`b"}, {"table": "a.b.c"}, {"table": "t", "step": 0}, {"table": "t", "topic": "a\x00"}])  # fmt: skip
async def test_nonsense_is_refused(database, options):
    async with database.store() as store:
        with pytest.raises(ConfigError):
            await adopt(store, **options)


def test_the_sql_can_be_read_beforehand():
    text = adoption_sql("legacy.outbox", prefix="post_")
    assert text.startswith("BEGIN;\nSELECT t.id FROM `legacy`.`outbox` AS t")
    assert "INSERT INTO post_outbox" in text
    assert text.endswith("DELETE FROM `legacy`.`outbox` WHERE id IN %(ids)s;\nCOMMIT;")


async def _session_of(store):
    async with store.session() as session:
        return session


async def _patiently(store):
    """Adopt in small steps; a deadlock with the other one is answered by going on."""
    while True:
        try:
            return await adopt(store, "outbox", step=5)
        except StoreRetryableError:
            continue


# -- relays ------------------------------------------------------------------------------------------
@pytest.mark.promise("G4")
async def test_nothing_is_adopted_while_a_relay_serves_the_stream(database):  # T-A5
    """It would have sent `new-3` before `old-2` is moved."""
    fill(database, [("old-1", "k", "pending", 0)])
    async with database.store() as store, database.store() as another:
        await adopt(store, "outbox")
        broker = MemoryBroker()
        async with Relay(another, broker, name="box-1", poll_seconds=0.02) as relay:
            await until(lambda: relay.counts.done == 1)
            fill(database, [("old-2", "k", "pending", 0)])
            with pytest.raises(StoreError, match=r"relays serve the stream 'main': box-1.*--force"):
                await adopt(store, "outbox")
            assert await adopt(store, "outbox", stream="other") == Adopted(1, 0)
            fill(database, [("old-3", "l", "pending", 0)])
            assert await adopt(store, "outbox", force=True) == Adopted(1, 0)
        fill(database, [("old-4", "k", "pending", 0)])
        assert await adopt(store, "outbox") == Adopted(1, 0)  # it has left


@pytest.mark.promise("G4")
async def test_a_relay_that_comes_in_between_ends_it(database):
    fill(database, [(f"e{n}", "k", "pending", 0) for n in range(4)])
    async with database.store() as store:
        database.run(
            "INSERT INTO postroom_member (stream, owner, until, length)"
            " VALUES ('main', 'late', 0, 60000000)"
        )

        def relay_comes(_):
            database.run("UPDATE postroom_member SET until = UTC_TIMESTAMP(6) + INTERVAL 60 SECOND")

        with pytest.raises(StoreError, match="relays serve the stream 'main': late"):
            await adopt(store, "outbox", step=1, on_moved=relay_comes)
        assert len(await store.find(Filter())) == 1


# -- statuses ----------------------------------------------------------------------------------------
TEXT_STATUS = (
    "ALTER TABLE outbox MODIFY status VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
)


async def test_unknown_statuses_are_refused_before_anything_moves(database):  # T-A6
    database.run(TEXT_STATUS)
    named = ["pending", "published", "published", "cancelled", "SENT"]
    fill(database, [(f"e{n}", "k", status, 0) for n, status in enumerate(named)])
    database.run("UPDATE outbox SET status = NULL WHERE event_id = 'e0'")
    async with database.store() as store:
        told = r"'NULL' \(1 rows\), 'cancelled' \(1 rows\), 'published' \(2 rows\)"
        with pytest.raises(StoreError, match=told):
            await adopt(store, "outbox")
        assert await store.find(Filter()) == []
        with pytest.raises(ConfigError, match="'published' cannot become 'sent'"):
            await adopt(store, "outbox", statuses={"published": "sent"})
        meaning = {"published": "done", "cancelled": "dead", "NULL": "pending"}
        assert await adopt(store, "outbox", statuses=meaning) == Adopted(5, 0)
        found = {record.id: record.state for record in await store.find(Filter())}
    assert found == {"e0": "pending", "e1": "done", "e2": "done", "e3": "dead", "e4": "done"}


async def test_a_status_that_appears_meanwhile_is_told_and_its_row_stays(database):
    database.run(TEXT_STATUS)
    fill(database, [("e1", "k", "pending", 0)])
    async with database.store() as store:

        def written(_):
            fill(database, [("e2", "k", "strange", 0)])

        with pytest.raises(StoreError, match="'strange'"):
            await adopt(store, "outbox", on_moved=written)
        assert [record.id for record in await store.find(Filter())] == ["e1"]
    assert database.run("SELECT event_id FROM outbox") == [("e2",)]


# -- keys, times, rows that do not fit ----------------------------------------------------------------
@pytest.mark.promise("W10")
@pytest.mark.parametrize("kind", ["BIGINT", "VARCHAR(9)"])
async def test_aggregate_0_is_a_key_like_any_other(database, kind):  # T-A7
    database.run(f"ALTER TABLE outbox MODIFY aggregate_id {kind} NOT NULL")
    fill(
        database, [("e1", "0", "pending", 0), ("e2", "0", "pending", 0), ("e3", "7", "pending", 0)]
    )
    async with database.store() as store:
        await adopt(store, "outbox")
        found = await store.find(Filter())
    assert [record.key for record in found] == ["0", "0", "7"]
    for record in found:
        assert record.key_hash == key_hash("user", record.key, record.id)


async def test_times_are_those_of_the_old_writers(own_server, mariadb_url):
    """Whatever the zone of the server's sessions: NOW() in one of them is now."""
    moscow = own_server("mariadb", arguments=["--default-time-zone=+03:00"])
    for url in (moscow.url, mariadb_url):
        for kind in ("DATETIME", "TIMESTAMP"):
            with own_database(url) as database:
                database.run(OLD_TABLE.format(charset="utf8mb4"))
                database.run(f"ALTER TABLE outbox MODIFY created_at {kind} DEFAULT NOW()")
                fill(database, [("e1", "k", "pending", 0)])
                database.run("UPDATE outbox SET created_at = NOW()")
                async with database.store() as store:
                    await adopt(store, "outbox")
                    (record,) = await store.find(Filter())
            assert abs((datetime.now(UTC) - record.created_at).total_seconds()) < 60


async def test_a_zone_that_the_server_does_not_know_is_refused(database):
    fill(database, [("e1", "k", "pending", 0)])
    async with database.store() as store:
        with pytest.raises(ConfigError, match="does not know the time zone 'Nowhere/Land'"):
            await adopt(store, "outbox", time_zone="Nowhere/Land")
        assert await store.find(Filter()) == []


async def test_a_row_without_a_payload_is_named_before_anything_moves(database):
    database.run("ALTER TABLE outbox MODIFY payload JSON NULL")
    fill(database, [("e1", "k", "pending", 0), ("e2", "k", "sent", 1), ("e3", "k", "pending", 0)])
    database.run("UPDATE outbox SET payload = NULL WHERE event_id = 'e2'")
    async with database.store() as store:
        with pytest.raises(StoreError, match="row 2 of outbox does not fit: payload is NULL"):
            await adopt(store, "outbox")
        assert await store.find(Filter()) == []
        assert await adopt(store, "outbox", sent=False) == Adopted(2, 1)


@pytest.mark.promise("G4")
async def test_rows_with_new_numbers_keep_their_order(database):
    fill(database, [(f"e{n}", "k", "pending", 0) for n in range(9)])
    async with database.store() as store:
        async with database.writing() as connection:
            await Outbox().add(connection, Event("t", id="first"))
        assert await adopt(store, "outbox", keep_numbers=False, step=4) == Adopted(9, 0)
        found = [record.id for record in await store.find(Filter())]
    assert found == ["first", *(f"e{n}" for n in range(9))]


@pytest.mark.req("S4.1")
async def test_by_the_command_line(database, tmp_path):
    fill(database, [("e1", "k", "pending", 0), ("e2", "k", "sent", 1)])
    url = database.url
    assert call("migrate", "--store", url, cwd=tmp_path).returncode == 0
    done = call(
        "migrate", "adopt", "--store", url, "--table", "outbox", "--topic", "users", cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "moved 2 rows of outbox into the outbox\n")
    async with database.store() as store:
        assert [(r.id, r.topic) for r in await store.find(Filter())] == [
            ("e1", "users"),
            ("e2", "users"),
        ]
    again = call("migrate", "adopt", "--store", url, "--table", "outbox", "--json", cwd=tmp_path)
    assert json.loads(again.stdout) == {"table": "outbox", "moved": 0, "left": 0}
    database.run(TEXT_STATUS)
    fill(database, [("e3", "k", "published", 0)])
    words = ["migrate", "adopt", "--store", url, "--table", "outbox"]
    refused = call(*words, cwd=tmp_path)
    assert refused.returncode == 3
    assert "'published' (1 rows)" in refused.stderr
    assert call(*words, "--status", "published=done", "--force", cwd=tmp_path).returncode == 0
    wrong = call("migrate", "adopt", "--store", url, "--table", "nothing", cwd=tmp_path)
    assert wrong.returncode == 3
    assert "nothing" in wrong.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["adopt", "--store", "sqlite:///app.db", "--table", "outbox"],
        ["adopt", "--store", "mysql://root@127.0.0.1:1/x"],
        ["up", "--store", "sqlite:///app.db", "--table", "outbox"],
        ["up", "--store", "sqlite:///app.db", "--force"],
        ["adopt", "--store", "mysql://root@127.0.0.1:1/x", "--table", "t", "--status", "adopt"],
    ],
)
def test_a_wrong_word_on_the_command_line(words, tmp_path):
    done = call("migrate", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "adopt" in done.stderr
