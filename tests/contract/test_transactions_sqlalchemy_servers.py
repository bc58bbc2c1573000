"""The contract of the write side on SQLAlchemy over PostgreSQL and MariaDB, with every driver."""

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from postroom.errors import (
    AutocommitError,
    DuplicateEventError,
    PayloadError,
    SchemaError,
    TransactionError,
)
from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox
from postroom.testing.misbehaviour import MisbehaviourContract
from postroom.testing.transactions import SavepointBench, SavepointContract, TransactionContract
from tests.contract.database import MariadbDatabase, PostgresDatabase

pytestmark = pytest.mark.slow


class Bench(SavepointBench):
    sync = True

    def __init__(self, database, driver, of):
        self.database, self.of, self.instant = database, of, database.instant
        self.engine = create_engine(database.sqlalchemy(driver), poolclass=NullPool)
        self.aborts = self.engine.dialect.name == "postgresql"
        self.opened = []

    async def open(self, **options):
        engine = self.engine.execution_options(**options)
        made = engine.connect() if self.of == "connection" else Session(engine)
        self.opened.append(made)
        return made

    async def close(self):
        for made in self.opened:
            made.close()

    async def begin(self):
        tx = await self.open()
        tx.begin()
        return tx

    async def commit(self, tx):
        tx.commit()

    async def rollback(self, tx):
        tx.rollback()

    async def execute(self, tx, sql):
        tx.execute(text(sql))

    async def autocommitting(self):
        return await self.open(isolation_level="AUTOCOMMIT")

    async def rows(self, table="postroom_outbox"):
        return self.database.rows(table)

    async def savepoint(self, tx):
        return tx.begin_nested()

    async def release(self, tx, savepoint):
        savepoint.commit()

    async def rollback_to(self, tx, savepoint):
        savepoint.rollback()

    def opening(self, tx):
        return _Opened(SyncOutbox().transaction(tx))


class _Opened:
    def __init__(self, inner):
        self.inner = inner

    async def __aenter__(self):
        return self.inner.__enter__()

    async def __aexit__(self, *error):
        return self.inner.__exit__(*error)


class AsyncBench(Bench):
    sync = False

    def __init__(self, database, driver, of):
        self.database, self.of, self.instant = database, of, database.instant
        self.engine = create_async_engine(database.sqlalchemy(driver), poolclass=NullPool)
        self.aborts = self.engine.dialect.name == "postgresql"
        self.opened = []

    async def open(self, **options):
        engine = self.engine.execution_options(**options)
        made = await engine.connect() if self.of == "connection" else AsyncSession(engine)
        self.opened.append(made)
        return made

    async def close(self):
        for made in self.opened:
            await made.close()

    async def begin(self):
        tx = await self.open()
        await tx.begin()
        return tx

    async def commit(self, tx):
        await tx.commit()

    async def rollback(self, tx):
        await tx.rollback()

    async def execute(self, tx, sql):
        await tx.execute(text(sql))

    async def savepoint(self, tx):
        return await tx.begin_nested()

    async def release(self, tx, savepoint):
        await savepoint.commit()

    async def rollback_to(self, tx, savepoint):
        await savepoint.rollback()

    def opening(self, tx):
        return Outbox().transaction(tx)


POSTGRES = {"psycopg": Bench, "psycopg async": AsyncBench, "asyncpg": AsyncBench}
MARIADB = {"pymysql": Bench, "mysqldb": Bench, "asyncmy": AsyncBench}


@pytest.fixture(scope="module")
def postgres(postgres_url):
    database = PostgresDatabase(postgres_url)
    database.create()
    yield database
    database.drop()


@pytest.fixture(scope="module")
def mariadb(mariadb_url):
    database = MariadbDatabase(mariadb_url)
    database.create()
    yield database
    database.drop()


@pytest.fixture(params=["connection", "session"])
def of(request):
    return request.param


@pytest.fixture(params=POSTGRES)
async def postgres_bench(request, postgres, of):
    postgres.clear()
    bench = POSTGRES[request.param](postgres, request.param.partition(" ")[0], of)
    yield bench
    await bench.close()


@pytest.fixture(params=MARIADB)
async def mariadb_bench(request, mariadb, of):
    mariadb.clear()
    bench = MARIADB[request.param](mariadb, request.param, of)
    yield bench
    await bench.close()


class More:
    """What SQLAlchemy adds to the contract, on both."""

    @pytest.mark.promise("W1")
    async def test_autocommit_is_refused_inside_begin_too(self, bench):
        """SQLAlchemy says in_transaction() there, and is not."""
        target = await bench.autocommitting()
        begun = target.begin()
        if not bench.sync:
            await begun
        assert target.in_transaction()
        with pytest.raises(AutocommitError, match="autocommit mode"):
            await bench.add(target, Event("t"))
        assert await bench.rows() == []

    @pytest.mark.promise("G1")
    async def test_a_transaction_opened_by_the_outbox(self, bench):
        tx = await bench.open()
        async with bench.opening(tx):
            await bench.order(tx, "A")
            await bench.add(tx, Event("t", id="e-1"))
        with pytest.raises(ZeroDivisionError):
            async with bench.opening(tx):
                await bench.add(tx, Event("t", id="e-2"))
                1 / 0
        assert [row["id"] for row in await bench.rows()] == ["e-1"]
        assert await bench.orders() == ["A"]

    async def test_missing_tables_are_told_with_what_to_do(self, bench):
        with pytest.raises(SchemaError, match="postroom migrate"):
            await bench.add(await bench.open(), Event("t"), prefix="elsewhere_")

    @pytest.mark.promise("W5", "W9")
    async def test_a_duplicate_among_many_strict_ones_costs_no_number(self, bench):
        tx = await bench.begin()
        await bench.add(tx, Event("t", id="e-7", key="k"), ordering="strict")
        events = [Event("t", id=f"e-{n}", key="k") for n in range(10)]
        with pytest.raises(DuplicateEventError) as caught:
            await bench.add(tx, *events, ordering="strict")
        assert caught.value.ids == ("e-7",)
        await bench.commit(tx)
        assert [(row["id"], row["kseq"]) for row in await bench.rows()] == [
            ("e-7", 1), ("e-0", 2), ("e-1", 3), ("e-2", 4), ("e-3", 5), ("e-4", 6), ("e-5", 7),
            ("e-6", 8), ("e-8", 9), ("e-9", 10),
        ]  # fmt: skip


class TestOverPostgres(TransactionContract, SavepointContract, MisbehaviourContract, More):
    @pytest.fixture
    def bench(self, postgres_bench):
        return postgres_bench


class TestOverMariadb(TransactionContract, SavepointContract, MisbehaviourContract, More):
    @pytest.fixture
    def bench(self, mariadb_bench):
        return mariadb_bench

    async def test_a_character_set_that_loses_text_is_refused(self, bench):
        url = bench.engine.url.update_query_dict({"charset": "latin1"})
        make = create_engine if bench.sync else create_async_engine
        bench.engine = make(url, poolclass=NullPool)
        with pytest.raises(TransactionError, match="latin1.*charset='utf8mb4'"):
            await bench.add(await bench.open(), Event("t", "😀"))

    async def test_what_the_server_would_refuse_is_refused(self, bench, monkeypatch):
        """The limit as the server gives it, only small: the question is asked once a session."""
        asked = []
        real = bench.database.rows

        def limit(self, driver):
            asked.append(driver.session)
            found = yield driver.fetch(self._limit)
            assert found[0][0] >= 1_000_000
            return 40_000

        monkeypatch.setattr("postroom.transactions.dialect_mysql.Mysql._max_packet", limit)
        with pytest.raises(PayloadError, match=r"40,000 \(max_allowed_packet\)"):
            await bench.add(await bench.open(), Event("t", "x" * 50_000))
        assert len(asked) == 1
        assert real() == []


# -- the order of locks (W3, W8) ----------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    n: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


@pytest.mark.promise("W3")
@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_the_aggregate_is_written_before_its_event(request, server):
    database = request.getfixturevalue(server)
    database.clear()
    engine = create_engine(
        database.sqlalchemy("psycopg" if server == "postgres" else "pymysql"), poolclass=NullPool
    )
    from sqlalchemy import event

    seen = []
    event.listen(engine, "before_cursor_execute", lambda _c, _k, sql, *_: seen.append(sql.split()))
    with Session(engine) as session, session.begin():
        session.add(Order(name="A"))
        SyncOutbox(ordering="strict").add(session, Event("t", key="k"))
    written = [words[2] for words in seen if words[0] == "INSERT"]
    assert written == ["orders", "postroom_counter", "postroom_outbox"]
    assert [row["name"] for row in database.rows("orders")] == ["A"]
