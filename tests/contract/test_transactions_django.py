"""The contract of the write side on Django's connections over SQLite, PostgreSQL and MariaDB."""

import django
import pytest
from django.conf import settings
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, connections, models, transaction
from django.db.utils import ConnectionHandler

from postroom import notifier
from postroom.errors import (
    AutocommitError,
    DuplicateEventError,
    SchemaError,
    TransactionError,
    UnsupportedConnectionError,
)
from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox
from postroom.testing.misbehaviour import MisbehaviourContract
from postroom.testing.transactions import SavepointBench, SavepointContract, TransactionContract
from postroom.transactions import resolve_sync
from tests.contract import sqlite_file
from tests.contract.database import MariadbDatabase, PostgresDatabase

if not settings.configured:
    settings.configure(DATABASES={}, USE_TZ=True)
    django.setup()


class SqliteFile:
    instant = "1"

    def __init__(self, path):
        self.path = sqlite_file.make(path)
        self.settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": path}

    def rows(self, table="postroom_outbox"):
        return sqlite_file.rows(self.path, table)


def server_settings(engine, database):
    given = database.arguments
    return {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": given["database"],
        "HOST": given["host"],
        "PORT": given["port"],
        "USER": given["user"],
        "PASSWORD": given["password"] or "",
    }


class Bench(SavepointBench):
    """By an alias of its own, or by the proxy `django.db.connection`."""

    def __init__(self, place, alias, sync=True):
        self.place, self.alias, self.sync = place, alias, sync
        self.instant = place.instant
        self.blocks, self.used = [], {}
        self.after_end, self.aborts = "refused", "postgresql" in place.settings["ENGINE"]
        configure(alias, place.settings)

    @property
    def connection(self):
        """The one of this context: a fixture has another than its test."""
        if connections[self.alias].settings_dict is not connections.settings[self.alias]:
            del connections[self.alias]  # that of another test
        found = connections[self.alias]
        self.used[id(found)] = found
        return connection if self.alias == "default" else found

    def close(self):
        for made in self.used.values():
            made.close()

    def end(self, *, rollback=False):
        error = Undo() if rollback else None
        self.blocks.pop().__exit__(type(error) if error else None, error, None)

    async def begin(self):
        assert not self.blocks
        found = self.connection
        self.enter()
        return found

    def enter(self):
        block = transaction.atomic(using=self.alias)
        block.__enter__()
        self.blocks.append(block)

    async def commit_inside(self, tx):
        tx.commit()

    async def roll_back_inside(self, tx):
        tx.rollback()

    async def commit(self, tx):
        self.end()

    async def rollback(self, tx):
        self.end(rollback=True)

    async def execute(self, tx, sql):
        with tx.cursor() as cursor:
            cursor.execute(sql)

    async def autocommitting(self):
        return self.connection

    async def rows(self, table="postroom_outbox"):
        return self.place.rows(table)

    async def savepoint(self, tx):
        self.enter()

    async def release(self, tx, savepoint):
        self.end()

    async def rollback_to(self, tx, savepoint):
        self.end(rollback=True)


class Undo(Exception):
    pass


def configure(alias, given):
    """Add a database to those that Django knows, as DATABASES in the settings does."""
    made = ConnectionHandler({"default": {}, alias: dict(given)}).settings[alias]
    connections.settings[alias] = made
    connections.settings.setdefault("default", made)


@pytest.fixture(autouse=True)
def in_a_loop(monkeypatch):
    """The contract is written for a loop; Django would rather not be asked there."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.fixture(scope="module")
def postgres(postgres_url):
    database = PostgresDatabase(postgres_url)
    database.create()
    database.settings = server_settings("postgresql", database)
    yield database
    database.drop()


@pytest.fixture(scope="module")
def mariadb(mariadb_url):
    database = MariadbDatabase(mariadb_url)
    database.create()
    database.settings = server_settings("mysql", database)
    yield database
    database.drop()


class Both(TransactionContract, SavepointContract):
    @pytest.fixture(params=["default", "other"])
    def alias(self, request):
        return request.param

    @pytest.fixture
    def bench(self, place, alias):
        bench = Bench(place, alias)
        yield bench
        bench.close()

    @pytest.mark.promise("W3")
    async def test_relays_are_woken_after_the_outermost_commit(self, bench):
        kicks = []
        ends = [
            notifier.subscribe(s, lambda s=s: kicks.append((s, len(bench.place.rows()))))
            for s in ("main", "other")
        ]
        try:
            outbox = SyncOutbox()
            tx = await bench.begin()
            for n in range(3):
                outbox.add(tx, Event("t", id=f"a-{n}"))
            savepoint = await bench.savepoint(tx)
            outbox.add(tx, Event("t", id="inside"))
            await bench.release(tx, savepoint)
            savepoint = await bench.savepoint(tx)
            outbox.add(tx, Event("t", id="undone", stream="other"))
            await bench.rollback_to(tx, savepoint)
            assert kicks == []
            await bench.commit(tx)
            assert kicks[0] == ("main", 4)
            assert {stream for stream, _ in kicks} == {"main"}
            kicks.clear()
            tx = await bench.begin()
            outbox.add(tx, Event("t", id="rolled back"))
            await bench.rollback(tx)
            assert kicks == []
            with outbox.transaction(tx):
                outbox.add(tx, Event("t", id="b", stream="other"))
                assert kicks == []
            assert kicks == [("other", 5)]
        finally:
            for end in ends:
                end()

    @pytest.mark.promise("W3", "G1")
    async def test_an_error_after_the_commit_does_not_look_like_a_rollback(self, bench):
        outbox, called = SyncOutbox(), []

        def fail():
            called.append(True)
            raise ZeroDivisionError

        with outbox.transaction(bench.connection) as tx:
            outbox.add(tx, Event("t", id="committed"))
            assert resolve_sync(tx).after_commit(fail)
        assert called == [True]
        assert [row["id"] for row in await bench.rows()] == ["committed"]

    @pytest.mark.promise("G1")
    async def test_a_transaction_opened_by_the_outbox(self, bench):
        outbox = SyncOutbox()
        conn = bench.connection
        with outbox.transaction(conn) as tx:
            assert tx is conn
            await bench.order(conn, "A")
            outbox.add(conn, Event("t", id="e-1"))
            with transaction.atomic(using=bench.alias):
                outbox.add(conn, Event("t", id="e-2"))
            assert await bench.rows() == []
        with pytest.raises(ZeroDivisionError):
            with outbox.transaction(conn):
                outbox.add(conn, Event("t", id="e-3"))
                1 / 0
        assert [row["id"] for row in await bench.rows()] == ["e-1", "e-2"]
        with transaction.atomic(using=bench.alias):
            with pytest.raises(TransactionError, match="atomic block is already open"):
                with outbox.transaction(conn):
                    pytest.fail("not reached")

    @pytest.mark.promise("W1", "W3")
    async def test_transactions_by_hand(self, bench):
        conn = bench.connection
        conn.set_autocommit(False)
        await bench.add(conn, Event("t", id="e-1"))
        conn.rollback()
        await bench.add(conn, Event("t", id="e-2"))
        conn.commit()
        conn.set_autocommit(True)
        assert [row["id"] for row in await bench.rows()] == ["e-2"]
        with pytest.raises(AutocommitError):
            await bench.add(conn, Event("t"))

    async def test_missing_tables_are_told_with_what_to_do(self, bench):
        tx = await bench.begin()
        with pytest.raises(SchemaError, match="postroom migrate"):
            await bench.add(tx, Event("t"), prefix="elsewhere_")

    @pytest.mark.promise("W5", "W9")
    async def test_a_duplicate_among_many_strict_ones_costs_no_number(self, bench):
        tx = await bench.begin()
        await bench.add(tx, Event("t", id="e-1", key="k"), ordering="strict")
        with pytest.raises(DuplicateEventError) as caught:
            events = [Event("t", id=f"e-{n}", key="k") for n in range(3)]
            await bench.add(tx, *events, ordering="strict")
        assert caught.value.ids == ("e-1",)
        await bench.commit(tx)
        assert [(row["id"], row["kseq"]) for row in await bench.rows()] == [
            ("e-1", 1),
            ("e-0", 2),
            ("e-2", 3),
        ]


class Misbehaving(MisbehaviourContract):
    @pytest.fixture
    def bench(self, place):
        bench = Bench(place, "shop")
        yield bench
        bench.close()


class TestSqlite(Both):
    @pytest.fixture
    def place(self, tmp_path):
        return SqliteFile(tmp_path / "shop.db")


class TestPostgres(Both):
    @pytest.fixture
    def place(self, postgres):
        postgres.clear()
        return postgres


class TestPostgresServerBinding(Both):
    """Values that travel apart from the statement: psycopg's own way, an option in Django."""

    @pytest.fixture
    def place(self, postgres, monkeypatch):
        postgres.clear()
        options = {"OPTIONS": {"server_side_binding": True}}
        monkeypatch.setattr(postgres, "settings", {**postgres.settings, **options})
        return postgres


class TestMariadb(Both):
    @pytest.fixture
    def place(self, mariadb):
        mariadb.clear()
        return mariadb

    async def test_a_character_set_that_loses_text_is_refused(self, place):
        bench = Bench(place, "latin")
        connections.settings["latin"]["OPTIONS"] = {"charset": "latin1"}
        tx = await bench.begin()
        with pytest.raises(TransactionError, match="latin1.*charset='utf8mb4'"):
            await bench.add(tx, Event("t", "😀"))
        bench.close()


@pytest.fixture
def two(tmp_path):
    benches = [Bench(SqliteFile(tmp_path / f"{a}.db"), a) for a in ("default", "other")]
    yield benches
    for bench in benches:
        bench.close()


@pytest.mark.promise("W3")
async def test_an_atomic_block_of_another_alias_does_not_count(two):
    default, other = two
    tx = await default.begin()
    with pytest.raises(AutocommitError, match=r"atomic\(using='other'\)"):
        await default.add(other.connection, Event("t"))
    await default.add(tx, Event("t", id="e-1"))
    await default.commit(tx)
    assert [row["id"] for row in await default.rows()] == ["e-1"]
    assert await other.rows() == []


async def test_a_broken_block_stays_djangos_own_error(two):
    default, _ = two
    tx = await default.begin()
    transaction.set_rollback(True, using="default")
    with pytest.raises(transaction.TransactionManagementError):
        await default.add(tx, Event("t"))
    await default.rollback(tx)


async def test_in_a_loop_django_says_what_to_do(two, monkeypatch):
    default, _ = two
    tx = await default.begin()
    monkeypatch.delenv("DJANGO_ALLOW_ASYNC_UNSAFE")
    with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
        await Outbox().add(tx, Event("t"))
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


def test_near_misses_get_a_hint(two):
    class Shop(models.Model):
        class Meta:
            app_label = "shop"

    with two[0].connection.cursor() as cursor:
        for wrong in (Shop.objects, Shop(), Shop.objects.all(), connections, cursor):
            with pytest.raises(UnsupportedConnectionError, match="Pass django.db.connection"):
                SyncOutbox().add(wrong, Event("t"))
    with pytest.raises(UnsupportedConnectionError, match="Pass django.db.connection"):
        SyncOutbox().add(transaction.atomic(), Event("t"))


def test_the_proxy_of_something_else_is_refused():
    from django.core.cache import cache

    with pytest.raises(UnsupportedConnectionError, match="proxy for another object"):
        SyncOutbox().add(cache, Event("t"))


class TestMisbehaviourOnPostgres(Misbehaving):
    @pytest.fixture
    def place(self, postgres):
        postgres.clear()
        return postgres


class TestMisbehaviourOnMariadb(Misbehaving):
    @pytest.fixture
    def place(self, mariadb):
        mariadb.clear()
        return mariadb
