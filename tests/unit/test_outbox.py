"""What an outbox makes of an event, what it refuses, and whose objects it knows."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from typing import NamedTuple

import aiosqlite
import pytest
from sqlalchemy import ForeignKey, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool

from postroom.errors import (
    ConfigError,
    DuplicateEventError,
    EventError,
    PayloadError,
    SchemaError,
    TransactionError,
    UnsupportedConnectionError,
)
from postroom.event import Event
from postroom.inbox import Inbox, SyncInbox
from postroom.outbox import Outbox, SyncOutbox
from postroom.routes import Routes
from postroom.transaction import Counter, Standing, SyncTransaction
from tests.contract import sqlite_file


class Fake(SyncTransaction):
    """A transaction of the port's shape, which remembers what it was asked."""

    def __init__(self, existing=()):
        self.rows, self.calls, self.ids = [], [], set(existing)
        self.counters = {}

    def check(self):
        self.calls.append("check")

    def insert(self, rows, *, whole=False):
        self.calls.append("insert")
        if whole and any(row.id in self.ids for row in rows):
            return 0
        new = [row for row in rows if row.id not in self.ids]
        self.ids.update(row.id for row in new)
        self.rows += new
        return len(new)

    def count_up(self, counters):
        self.calls.append(list(counters))
        for topic, hashed, count in counters:
            self.counters[topic, hashed] = self.counters.get((topic, hashed), 0) + count
        return [self.counters[c.topic, c.key_hash] for c in counters]

    def accept(self, mark):
        self.calls.append(mark)
        return True

    def count_done(self, marks):
        return len(marks)

    def hold(self, earlier):
        return True

    def is_open(self):
        return True

    def standing(self, proofs):
        return Standing.HELD

    def after_commit(self, call):
        return False


@pytest.fixture
def path(tmp_path):
    return sqlite_file.make(tmp_path / "shop.db")


@pytest.fixture
def conn(path):
    with closing(sqlite3.connect(path)) as conn:
        yield conn


def written(path):
    return [row["id"] for row in sqlite_file.rows(path)]


# -- from event to row ------------------------------------------------------------------------------


@pytest.mark.req("S1.2")
@pytest.mark.parametrize(
    ("options", "given", "topic"),
    [
        ({}, {}, "outbox_events"),
        ({"default_topic": "events"}, {}, "events"),
        ({"routes": {"order.created": "orders"}}, {}, "orders"),
        ({"routes": {"order.*": "orders"}}, {"topic": "mine"}, "mine"),
        ({"routes": Routes({"user.*": "users"}, "rest")}, {}, "rest"),
    ],
)
def test_the_topic_is_the_events_own_or_its_routes_or_the_default(options, given, topic):
    tx = Fake()
    SyncOutbox(**options).add(tx, Event("order.created", **given))
    assert tx.rows[0].topic == topic


@pytest.mark.promise("W10")
def test_the_lane_is_the_first_byte_of_the_keys_md5():
    tx = Fake()
    SyncOutbox().add(tx, Event("t", key="order-42", aggregate_type="order"))
    SyncOutbox().add(tx, Event("t", key="order-42"))
    SyncOutbox().add(tx, Event("t", id="e-1"))
    assert [(row.key_hash.hex(), row.lane) for row in tx.rows] == [
        ("de944db85b190d4b4b22e759e2352c9a", 30),
        ("0f936e7ca587f4437d075d228532a207", 15),
        ("9f1c31ef8ac37eb6834aa6c30855b358", 31),
    ]


def test_what_is_empty_is_stored_as_nothing():
    tx = Fake()
    SyncOutbox().add(tx, Event("t", None))
    row = tx.rows[0]
    assert (row.payload, row.payload_bytes, row.size) == ("null", None, 4)
    assert (row.headers, row.causation_path, row.key, row.correlation_id) == (None,) * 4
    assert (row.available_us, row.kseq) == (None, None)


def test_times_are_microseconds_since_1970():
    tx = Fake()
    instant = datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)
    SyncOutbox().add(tx, Event("t", occurred_at=instant, available_at=instant))
    assert (tx.rows[0].occurred_us, tx.rows[0].available_us) == (1_000_005, 1_000_005)


def test_the_events_content_type_wins():
    tx = Fake()
    SyncOutbox().add(tx, Event("t", b"{}", content_type="application/json"))
    SyncOutbox().add(tx, Event("t", {}, content_type="application/problem+json"))
    assert [(r.payload, r.payload_bytes, r.content_type) for r in tx.rows] == [
        (None, b"{}", "application/json"),
        ("{}", None, "application/problem+json"),
    ]


def test_add_returns_its_event_and_add_many_a_list():
    first, second = Event("a"), Event("b")
    assert SyncOutbox().add(Fake(), first) is first
    assert SyncOutbox().add_many(Fake(), (e for e in (first, second))) == [first, second]


def test_nothing_to_add_runs_no_statement():
    tx = Fake()
    assert SyncOutbox().add_many(tx, []) == []
    assert tx.calls == []


async def test_the_port_is_used_as_it_is_in_both_worlds():
    class Awaitable(Fake):
        async def insert(self, rows, *, whole=False):
            return super().insert(rows, whole=whole)

    for tx in (Fake(), Awaitable()):
        await Outbox().add(tx, Event("t", id="e-1"))
        assert [row.id for row in tx.rows] == ["e-1"]
        with pytest.raises(TransactionError, match="already a transaction"):
            async with Outbox().transaction(tx):
                pytest.fail("not reached")
    with pytest.raises(UnsupportedConnectionError, match="use Outbox or Inbox and await"):
        SyncOutbox().add(Awaitable(), Event("t"))


# -- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"type": "t"}, "t", None, Event, [Event("t")]])
async def test_what_is_no_event_is_a_type_error(wrong):
    tx = Fake()
    with pytest.raises(TypeError, match=r"takes Event objects, not \w+: add\(conn, Event"):
        SyncOutbox().add(tx, wrong)
    with pytest.raises(TypeError, match="takes Event objects"):
        await Outbox().add_many(tx, [Event("t"), wrong])
    assert tx.calls == []


def test_add_many_of_one_event_points_to_add():
    with pytest.raises(TypeError, match="use add for a single event"):
        SyncOutbox().add_many(Fake(), Event("t"))


def test_everything_is_checked_before_the_first_statement():
    tx = Fake()
    with pytest.raises(PayloadError):
        SyncOutbox().add_many(tx, [Event("t"), Event("t", float("inf"))])
    with pytest.raises(DuplicateEventError):
        SyncOutbox().add_many(tx, [Event("t", id="a"), Event("t", id="a")])
    assert tx.calls == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ordering": "stict"}, "'keyed' or 'strict'"),
        ({"prefix": "Post-Room"}, "lower-case"),
        ({"prefix": "x; DROP TABLE y"}, "lower-case"),
        ({"prefix": ""}, "lower-case"),
        ({"routes": Routes(), "default_topic": "events"}, "set it with Routes"),
        ({"default_topic": ""}, "empty"),
        ({"routes": {"a*b": "t"}}, "only supported at the end"),
    ],
)
def test_settings_that_make_no_sense(options, message):
    with pytest.raises(ConfigError, match=message):
        Outbox(**options)


# -- strict -----------------------------------------------------------------------------------------


@pytest.mark.promise("W9")
def test_strict_wants_a_key_and_no_delay():
    tx = Fake()
    outbox = SyncOutbox(ordering="strict")
    with pytest.raises(EventError, match=r"event\.key is missing"):
        outbox.add(tx, Event("t"))
    with pytest.raises(EventError, match=r"event\.available_at is not supported with strict"):
        outbox.add(tx, Event("t", key="k", available_at=datetime.now(UTC)))
    assert tx.calls == []


@pytest.mark.promise("W9")
def test_counters_are_taken_in_one_order_and_numbers_in_the_events_order():
    tx = Fake()
    events = [Event("t", id=f"{k}{n}", key=k) for n in (1, 2) for k in "hgfedcba"]
    SyncOutbox(ordering="strict").add_many(tx, events)
    taken = tx.calls[0]
    assert [(c.topic, c.key_hash) for c in taken] == sorted((c.topic, c.key_hash) for c in taken)
    assert [c.step for c in taken] == [2] * 8
    assert [(row.id, row.kseq) for row in tx.rows] == [
        ("h1", 1), ("g1", 1), ("f1", 1), ("e1", 1), ("d1", 1), ("c1", 1), ("b1", 1), ("a1", 1),
        ("h2", 2), ("g2", 2), ("f2", 2), ("e2", 2), ("d2", 2), ("c2", 2), ("b2", 2), ("a2", 2),
    ]  # fmt: skip


@pytest.mark.promise("W9")
def test_numbers_of_what_was_not_written_go_back():
    class Full(Fake):
        def insert(self, rows, *, whole=False):
            if whole:
                return 0  # one by one
            if rows[0].id == "3":
                raise OSError("disk full")
            return super().insert(rows)

    tx = Full()
    with pytest.raises(OSError, match="disk full"):
        SyncOutbox(ordering="strict").add_many(tx, [Event("t", id=i, key="k") for i in "12345"])
    (last,) = tx.counters.values()
    assert [(row.id, row.kseq) for row in tx.rows] == [("1", 1), ("2", 2)]
    assert last == 2
    assert isinstance(tx.calls[-1][0], Counter)


@pytest.mark.promise("W9")
def test_many_strict_events_are_one_count_and_one_insert():
    tx = Fake()
    outbox = SyncOutbox(ordering="strict")
    outbox.add_many(tx, [Event("t", id=f"{n}", key=f"k{n % 3}") for n in range(300)])
    assert [c if isinstance(c, str) else len(c) for c in tx.calls] == [3, "insert"]
    assert [row.kseq for row in tx.rows[:7]] == [1, 1, 1, 2, 2, 2, 3]
    with pytest.raises(DuplicateEventError) as caught:
        outbox.add_many(tx, [Event("t", id=i, key="k0") for i in ("new", "0", "newer")])
    assert caught.value.ids == ("0",)
    assert [(row.id, row.kseq) for row in tx.rows[300:]] == [("new", 101), ("newer", 102)]
    assert tx.counters["outbox_events", tx.rows[0].key_hash] == 102


# -- real connections -------------------------------------------------------------------------------


def test_another_prefix(path, conn):
    conn.executescript(sqlite_file.SCHEMA.replace("postroom_", "mine_"))
    SyncOutbox(prefix="mine_", ordering="strict").add(conn, Event("t", id="e-1", key="k"))
    assert SyncInbox("c", prefix="mine_").accept(conn, Event("t", id="e-1")) is True
    conn.commit()
    assert [row["id"] for row in sqlite_file.rows(path, "mine_outbox")] == ["e-1"]
    assert written(path) == []


async def test_missing_tables_are_told_with_what_to_do(tmp_path):
    with closing(sqlite3.connect(tmp_path / "empty.db")) as conn:
        with pytest.raises(SchemaError, match="postroom migrate"):
            SyncOutbox().add(conn, Event("t"))
        with pytest.raises(SchemaError, match="postroom migrate"):
            SyncInbox("c").accept(conn, Event("t"))
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/empty.db", poolclass=NullPool)
    async with engine.connect() as conn:
        with pytest.raises(SchemaError, match="postroom migrate"):
            await Outbox().add(conn, Event("t"))


async def test_near_misses_get_a_hint(path, conn):
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    for wrong, hint in [
        (conn.cursor(), "cursor's connection"),
        (engine, "a connection or session that it opened"),
        (sessionmaker(engine), "a connection or session that it opened"),
        (async_engine, "a connection or session that it opened"),
        (async_sessionmaker(async_engine), "a connection or session that it opened"),
        (str(path), "never opens a connection"),
        (None, "Pass the connection"),
        (Session, "; supported: "),
    ]:
        with pytest.raises(UnsupportedConnectionError, match=hint) as caught:
            await Outbox().add(wrong, Event("t"))
        assert "aiosqlite.Connection" in caught.value.accepted
    with engine.connect() as sa_conn, sa_conn.begin() as sa_tx:
        with pytest.raises(UnsupportedConnectionError, match="not its transaction"):
            SyncOutbox().add(sa_tx, Event("t"))
    async with aiosqlite.connect(path) as aio, AsyncSession(async_engine) as session:
        for wrong in (aio, session):
            with pytest.raises(UnsupportedConnectionError, match="use Outbox") as caught:
                SyncOutbox().add(wrong, Event("t"))
            assert caught.value.accepted[0] == "sqlite3.Connection"
            assert "aiosqlite.Connection" not in caught.value.accepted


def test_subclasses_of_a_connection_are_accepted(path):
    class Mine(sqlite3.Connection):
        pass

    with closing(sqlite3.connect(path, factory=Mine)) as conn:
        SyncOutbox().add(conn, Event("t", id="e-1"))
        conn.commit()
    assert written(path) == ["e-1"]


def test_importing_the_write_side_loads_no_driver():
    code = (
        "import sys, postroom.outbox, postroom.inbox; "
        "sys.exit(any(m in sys.modules for m in ('sqlite3', 'aiosqlite', 'sqlalchemy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# -- SQLAlchemy sessions ----------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Shop(Base):
    __tablename__ = "shops"
    id: Mapped[int] = mapped_column(primary_key=True)


class Sale(Base):
    __tablename__ = "sales"
    id: Mapped[int] = mapped_column(primary_key=True)
    shop_id: Mapped[int] = mapped_column(ForeignKey("shops.id"))


@pytest.fixture
def engine(path):
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    Base.metadata.create_all(engine)
    return engine


@pytest.mark.promise("W3")
def test_a_session_is_flushed_before_the_event_is_written(engine):
    statements = []
    event.listen(
        engine, "before_cursor_execute", lambda _c, _k, sql, *_: statements.append(sql.split()[2])
    )
    for options, expected in (
        ({}, ["shops", "postroom_outbox"]),
        ({"ordering": "strict"}, ["shops", "postroom_counter", "postroom_outbox"]),
    ):
        with Session(engine) as session:
            session.add(Shop())
            SyncOutbox(**options).add(session, Event("t", key="k"))
            assert statements == expected
        statements.clear()


@pytest.mark.promise("W3")
def test_an_add_during_a_flush(engine, path):
    def told(mapper, connection, shop):
        SyncOutbox().add(Session.object_session(shop), Event("shop.opened", id=f"shop-{shop.id}"))

    event.listen(Shop, "after_insert", told)
    try:
        with Session(engine) as session, session.begin():
            session.add(Shop(id=7))
    finally:
        event.remove(Shop, "after_insert", told)
    assert written(path) == ["shop-7"]


@pytest.mark.promise("W3")
def test_a_session_with_several_binds_needs_an_explicit_one(engine, path, tmp_path):
    other = create_engine(f"sqlite:///{tmp_path}/other.db", poolclass=NullPool)
    for options in (
        {"binds": {Shop: other, Sale: engine}},
        {"bind": engine, "binds": {Shop: other}},
    ):
        with Session(**options) as session:
            with pytest.raises(TransactionError, match=r"2 binds.*session\.connection"):
                SyncOutbox().add(session, Event("t"))
            right = session.connection(bind_arguments={"mapper": Sale})
            SyncOutbox().add(right, Event("t"))
            session.commit()
    assert len(written(path)) == 2
    with Session(binds={Sale: engine, Shop: engine}, bind=engine) as session:
        SyncOutbox().add(session, Event("t", id="one engine is no question"))
        session.commit()
    assert written(path)[-1] == "one engine is no question"


async def test_a_dialect_that_is_not_known_is_told():
    class Elsewhere:
        name, driver = "oracle", "oracledb"

    with create_engine("sqlite://", poolclass=NullPool).connect() as conn:
        conn.dialect = Elsewhere
        with pytest.raises(
            TransactionError, match="'oracle.oracledb' is not supported; supported are sqlite"
        ):
            SyncOutbox().add(conn, Event("t"))


def test_business_data_by_text_and_event_by_session_share_the_rollback(engine, path):
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES ('A')"))
        SyncOutbox().add(session, Event("t"))
        session.rollback()
    assert written(path) == []
    assert sqlite_file.rows(path, "orders") == []


# -- the inbox --------------------------------------------------------------------------------------


class Message(NamedTuple):
    id: object = "m-1"
    type: object = "t"
    correlation_id: str | None = None


async def test_the_inbox_marks_who_what_and_why():
    tx = Fake()
    assert await Inbox("payments").accept(tx, Event("paid", id="e-1", correlation_id="c-1")) is True
    assert tx.calls == [("payments", "e-1", "paid", "c-1")]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (object(), TypeError),
        ({"id": "m-1"}, TypeError),
        (Message(id=5), EventError),
        (Message(id=""), EventError),
        (Message(type=None), EventError),
    ],
)
def test_messages_that_cannot_be_remembered(message, error):
    tx = Fake()
    with pytest.raises(error):
        SyncInbox("payments").accept(tx, message)
    assert tx.calls == []


def test_a_consumer_needs_a_name():
    with pytest.raises(ConfigError, match="consumer"):
        Inbox("")


def test_on_duplicate_is_raise_or_ignore():
    conn = sqlite3.connect(":memory:")
    for add, given in ((SyncOutbox().add, Event("t")), (SyncOutbox().add_many, [Event("t")])):
        with pytest.raises(
            ValueError, match="on_duplicate must be 'raise' or 'ignore', not 'skip'"
        ):
            add(conn, given, on_duplicate="skip")
    conn.close()
