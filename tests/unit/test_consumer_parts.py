"""The parts of receiving that need no broker: ids, records, offsets, conflicts, the history."""

from __future__ import annotations

import hashlib
import sqlite3

import asyncmy.errors
import psycopg
import pymongo.errors
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom import Event, Handlers
from postroom.engine.consumer.durable_inbox import DurableInbox, StoredMessages, stream_of
from postroom.engine.consumer.messages import read, restore, row_id, to_record, to_row
from postroom.engine.handlers.context import Context
from postroom.errors import (
    CausationError,
    ConfigError,
    EventError,
    StoreRefusedError,
    StoreRetryableError,
)
from postroom.event import MAX_CAUSATION
from postroom.model.foreign_messages import translate
from postroom.model.incoming import Incoming
from postroom.model.message_id import MessageId, hash_id, identify
from postroom.model.option_reader import with_options
from postroom.outbox import Outbox
from postroom.settings import ConsumerSettings
from postroom.sources.kafka.offsets import Partition
from postroom.stores.memory import MemoryStore
from postroom.testing.broker_tools import RecordingReporter, make_record
from postroom.transactions.conflicts import has_no_room, is_conflict, is_passing


# -- ids (S5.5) -------------------------------------------------------------------------------
@pytest.mark.req("S5.5")
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"postroom-id": "e-1", "ce_id": "c-1"}, "e-1"),
        ({"ce_id": "c-1"}, "c-1"),
        ({"ce-id": "c-2", "ce-source": "/shop/a"}, "/shop/a c-2"),
        ({"cloudEvents:id": "c-3", "cloudEvents:source": "/shop/b"}, "/shop/b c-3"),
    ],
)
def test_the_senders_own_id_goes_first(headers, expected):
    message = translate(Incoming("t", b"", headers))
    assert identify(message, "hash") == MessageId(expected)


@pytest.mark.req("S5.5")
def test_without_an_id_it_is_sha256_over_the_routing_key_and_the_body():
    expected = hashlib.sha256(b'orders.new:{"n":1}').hexdigest()
    assert hash_id("orders.new", b'{"n":1}') == expected
    found = identify(Incoming("orders.new", b'{"n":1}', {}), "hash")
    assert found == MessageId(expected, hashed=True)


@pytest.mark.promise("I5")
def test_the_place_in_the_log_can_be_the_id():
    message = Incoming("t", b"", {}, offset="t/3/17")
    assert identify(message, "offset") == MessageId("t/3/17")
    assert identify(message._replace(headers={"postroom-id": "e-1"}), "offset").text == "e-1"


@pytest.mark.promise("I5")
def test_a_message_without_an_id_can_be_refused():
    with pytest.raises(EventError, match="missing_id='reject'"):
        identify(Incoming("t", b"", {}), "reject")


@pytest.mark.parametrize("hostile", ["x" * 256, "line\nbreak", "\ud800"])
def test_an_id_that_no_inbox_can_keep_is_hashed(hostile):
    found = identify(Incoming("t", b"", {"postroom-id": hostile}), "reject").text
    assert found.startswith("sha256:")
    assert len(found) == 71


# -- records ----------------------------------------------------------------------------------
def test_a_foreign_message_becomes_an_event():
    record = to_record(Incoming("orders.new", b'{"n":1}', {"tenant": "north"}, key="k-1"))
    assert (record.type, record.topic, record.key) == ("orders.new", "orders.new", "k-1")
    assert record.data == {"n": 1}
    assert record.headers == {"tenant": "north"}


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("application/json; charset=utf-8", b"7", 7),
        ("application/vnd.shop+json", b"[7]", [7]),
        (None, b' {"n": 7}', {"n": 7}),
        (None, b"plain", b"plain"),
        ("text/plain", b"{}", b"{}"),
    ],
)
def test_what_is_json_is_decoded(content_type, body, expected):
    headers = {} if content_type is None else {"content-type": content_type}
    assert to_record(Incoming("t", body, headers)).data == expected


HOSTILE = {
    "plain": Incoming("orders", b'{"n":1}', {"postroom-id": "e-1", "postroom-key": "k"}),
    "no text": Incoming("orders", b"\xff\x00", {"postroom-id": "e-2"}, key="k", offset="o/1/2"),
    "json with NUL": Incoming("orders", b'{"a":"\x00"}', {"content-type": "application/json"}),
    "long": Incoming("t" * 300, b"{}", {"postroom-type": "y" * 300, "postroom-key": "k" * 300}),
    "surrogates": Incoming(
        "\ud800",
        b"{}",
        {
            "postroom-id": "\ud800",
            "postroom-key": "\ud800",
            "x": "\ud800",
            "postroom-aggregate-type": "\ud800",
        },
    ),
    "talk of NUL": Incoming(
        "orders", b"{}", {"postroom-id": r"\u0000", "x": r"\u0000", r"\u0000": "\x00"}
    ),
    "strict": Incoming("orders", b"{}", {"postroom-id": "e", "postroom-kseq": "3", "x": "\x00"}),
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE)
async def test_a_kept_message_is_the_same_event(message):
    store = MemoryStore()
    await store.open()
    record = to_record(message)
    backlog = DurableInbox(store, "payments", strict=False)
    assert await backlog.keep([(message, record)]) == 1
    assert await backlog.keep([(message, record)]) == 0  # a repeat of it
    kept = await store.get(row_id("payments", record.id))
    found = restore(kept)
    assert kept.stream == "inbox.payments"
    for name in ("id", "type", "key_hash", "payload", "content_type", "kseq", "causation_path"):
        assert getattr(found, name) == getattr(record, name), name
    assert found.headers.get("x") == record.headers.get("x")


@pytest.mark.parametrize("strict", [True, False])
async def test_only_strict_handlers_keep_the_number_that_no_message_may_lose(strict):
    store = MemoryStore()
    await store.open()
    message = HOSTILE["strict"]
    await DurableInbox(store, "payments", strict=strict).keep([(message, to_record(message))])
    kept = await store.get("inbox/payments/e")
    assert kept.kseq == (3 if strict else None)  # one with a number is never buried by itself
    assert restore(kept).kseq == 3  # handlers see it in any case


def test_two_consumers_keep_one_message_each_for_itself():
    message = HOSTILE["plain"]
    record = to_record(message)
    rows = {to_row(message, record, name, stream_of(name)).id for name in ("billing", "shipping")}
    assert rows == {"inbox/billing/e-1", "inbox/shipping/e-1"}
    assert row_id("billing", "x" * 255).startswith("inbox/")
    assert len(row_id("billing", "x" * 255)) <= 100


_names = st.text("a/%2F5#", min_size=1, max_size=8)


@pytest.mark.promise("F4")
@given(_names, _names, _names, _names)
@example("/", "x", "%2F", "x")
@example("%", "x", "%25", "x")
def test_no_two_messages_have_one_row(one, first, two, second):
    """R-A8: consumer `eu` with `billing/x` is not consumer `eu/billing` with `x`."""
    assert (row_id(one, first) == row_id(two, second)) == ((one, first) == (two, second))


def test_no_event_has_the_id_of_a_kept_message():
    """R-A8"""
    assert row_id("eu", "billing/x") == "inbox/eu/billing/x"
    assert row_id("eu/billing", "x") == "inbox/eu%2Fbilling/x"
    with pytest.raises(EventError, match="which is reserved for stored messages"):
        Event("t", id="inbox/eu/billing/x")
    Event("t", id="inbox.eu")


@pytest.mark.promise("F4")
async def test_a_row_of_somebody_else_is_neither_taken_for_a_kept_message_nor_buried():
    """R-A8: as one that was written by SQL, past the checks of an event."""
    store = MemoryStore()
    await store.open()
    message = HOSTILE["plain"]
    record = to_record(message)
    row = to_row(message, record, "payments", "main")
    async with store.transaction() as tx:
        await tx.insert([row])
    backlog = DurableInbox(store, "payments", strict=False)
    other = HOSTILE["strict"]
    with pytest.raises(EventError, match="a row in the stream 'main'"):
        await backlog.keep([(other, to_record(other)), (message, record)])
    assert await store.get(row_id("payments", "e")) is None  # all of them, or none
    with pytest.raises(EventError, match="delete that row"):
        await backlog.bury(message, record, "no handler")
    assert (await store.get(row.id)).state == "pending"


@pytest.mark.promise("I6")
def test_a_replay_under_a_new_id_is_a_new_event():
    message = HOSTILE["plain"]
    row = to_row(message, to_record(message), "billing", "inbox.billing")
    kept = make_record(
        id=row.id, stream=row.stream, headers_json=row.headers, payload=b"{}", key="k"
    )
    assert restore(kept).id == "e-1"
    assert restore(kept._replace(id="copy-1")).id == "copy-1"


def test_a_row_that_is_no_message_is_handed_on():
    marker = make_record(id="x", stream="inbox.billing", type="postroom.skipped", kseq=3)
    assert restore(marker) is marker


async def test_a_dead_letter_is_written_once():
    store = MemoryStore()
    await store.open()
    message = HOSTILE["plain"]
    backlog = DurableInbox(store, "payments", strict=False)
    for _ in range(2):
        await backlog.bury(message, to_record(message), "no handler")
    kept = await store.get("inbox/payments/e-1")
    assert (kept.state, kept.last_error) == ("dead", "no handler")


async def test_handlers_behind_a_backlog_see_the_message():
    seen = []
    handlers = Handlers(transaction=False)

    @handlers.on("order.created")
    async def on_order(event, tx):
        seen.append(event.id)

    message = Incoming("t", b"{}", {"postroom-id": "e-1", "postroom-type": "order.created"})
    row = to_row(message, to_record(message), "billing", "inbox.billing")
    kept = make_record(id=row.id, stream=row.stream, headers_json=row.headers, payload=b"{}")
    reporter = RecordingReporter()
    unpacked = StoredMessages(handlers)
    await unpacked.open()
    await unpacked.publish([kept], reporter)
    assert seen == ["e-1"]
    assert await handlers.close() is None


# -- offsets ----------------------------------------------------------------------------------
@pytest.mark.promise("G2")
def test_only_an_unbroken_run_of_offsets_is_committed():
    partition = Partition("orders", 0)
    for offset in (5, 6, 9, 10):  # 7 and 8 belong to an aborted transaction
        partition.arrived(offset)
    assert partition.to_commit() is None
    partition.done(6)
    partition.done(10)
    assert partition.to_commit() is None
    partition.done(5)
    assert partition.to_commit() == 7
    assert partition.to_commit() is None
    partition.done(9)
    assert partition.to_commit() == 11


@pytest.mark.promise("G2")
def test_nothing_of_a_lost_partition_is_committed():
    partition = Partition("orders", 0)
    partition.arrived(1)
    partition.lose()
    partition.done(1)
    assert partition.is_lost
    assert partition.to_commit() is None


def test_an_offset_that_was_not_taken_is_offered_again():
    partition = Partition("orders", 0)
    partition.arrived(1)
    partition.done(1)
    assert partition.to_commit() == 2
    partition.not_committed()
    assert partition.to_commit() == 2


# -- conflicts (I2) ---------------------------------------------------------------------------
class Driver(Exception):
    def __init__(self, *args, **facts):
        super().__init__(*args)
        self.__dict__.update(facts)


def of_module(name, *args, **facts):
    kind = type("Error", (Driver,), {"__module__": name})
    return kind(*args, **facts)


@pytest.mark.promise("I2")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StoreRetryableError("busy"), True),
        (of_module("psycopg.errors", sqlstate="40001"), True),
        (of_module("asyncpg.exceptions", sqlstate="40P01"), True),
        (of_module("psycopg.errors", sqlstate="23505"), False),
        (of_module("pymysql.err", 1213, "Deadlock"), True),
        (of_module("MySQLdb", 1205, "Lock wait timeout"), True),
        (of_module("pymysql.err", 1062, "Duplicate"), False),
        (of_module("shop", 1213), False),
        (of_module("sqlalchemy.exc", orig=of_module("asyncmy.errors", 1213, "Deadlock")), True),
        (of_module("pymongo.errors", has_error_label=lambda label: True, code=112), True),
        (of_module("pymongo.errors", has_error_label=lambda label: True, code=None), False),
        (of_module("sqlite3", sqlite_errorcode=517), True),
        (ValueError("no"), False),
        (None, False),
    ],
)
def test_a_conflict_is_told_from_a_failure(error, expected):
    assert is_conflict(error) is expected


@pytest.mark.promise("P2")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (of_module("psycopg.errors", sqlstate="53100"), True),  # disk full
        (of_module("asyncpg.exceptions", sqlstate="53200"), True),  # out of memory
        (of_module("psycopg.errors", sqlstate="25006"), True),  # read only, as after a fail-over
        (of_module("psycopg.errors", sqlstate="23505"), False),
        (of_module("psycopg.errors", sqlstate=None), False),
        (of_module("asyncmy.errors", 1114, "The table is full"), True),
        (of_module("MySQLdb", 1021, "Disk full"), True),
        (of_module("pymysql.err", 1290, "--read-only"), True),
        (of_module("pymysql.err", 1213, "Deadlock"), False),
        (of_module("shop", 1114), False),
        (of_module("sqlite3", sqlite_errorcode=13), True),
        (of_module("sqlite3", sqlite_errorcode=778), True),  # SQLITE_IOERR_WRITE
        (of_module("sqlite3", sqlite_errorcode=2067), False),
        (of_module("pymongo.errors", code=14031), True),
        (of_module("pymongo.errors", code=11000), False),
        (of_module("sqlalchemy.exc", orig=of_module("asyncmy.errors", 1114, "full")), True),
        (None, False),
    ],
)
def test_a_database_without_room_is_told_from_a_failure(error, expected):
    assert has_no_room(error) is expected


@pytest.mark.promise("G2", "I3")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StoreRetryableError("busy"), True),
        (ConnectionResetError(), True),
        (sqlite3.OperationalError("database or disk is full"), True),
        (sqlite3.DataError("string or blob too big"), False),
        (psycopg.errors.DiskFull(), True),
        (psycopg.OperationalError("server closed the connection unexpectedly"), True),
        (psycopg.errors.UntranslatableCharacter(), False),
        (asyncmy.errors.OperationalError(2013, "Lost connection"), True),
        (asyncmy.errors.DataError(1406, "Data too long"), False),
        (asyncmy.errors.OperationalError(1153, "packet too large"), False),
        (asyncmy.errors.OperationalError(4025, "CONSTRAINT `stranger` failed"), False),
        (asyncmy.errors.OperationalError(1644, "not this one"), False),
        (StoreRefusedError("not this one"), False),
        (psycopg.errors.ProgramLimitExceeded(), False),
        (pymongo.errors.AutoReconnect("away"), True),
        (pymongo.errors.DocumentTooLarge("16 MB"), False),
        (ConfigError("too long"), False),
        (ValueError("odd"), False),
        (None, False),
    ],
)
def test_what_passes_is_told_from_what_stays(error, expected):
    assert is_passing(error) is expected


# -- the history (S3.1) -----------------------------------------------------------------------
def context(event, module="billing"):
    return Context(module, event, None, Outbox())


@pytest.mark.req("S3.1")
def test_what_is_caused_inherits_the_history():
    cause = make_record(id="e-1", type="order.created", correlation_id="story")
    caused = context(cause).caused(Event("payment.made"))
    assert caused.correlation_id == "story"
    assert caused.causation_path == (("billing", "order.created"),)
    own = context(cause).caused(Event("payment.made", correlation_id="another"))
    assert own.correlation_id == "another"


@pytest.mark.req("S3.1")
def test_a_story_begins_with_an_event_that_has_none():
    cause = make_record(id="e-1", type="order.created", correlation_id=None)
    assert context(cause).caused(Event("t")).correlation_id == "e-1"


@pytest.mark.req("S3.1")
def test_a_path_that_bites_its_own_tail_is_refused():
    path = '[["billing","order.created"],["shop","payment.made"]]'
    cause = make_record(id="e-3", type="order.created", causation_json=path)
    with pytest.raises(CausationError, match="contains a cycle: billing:order.created"):
        context(cause).caused(Event("payment.made"))


@pytest.mark.req("S3.1")
def test_a_path_has_an_end():
    path = str([[f"m{n}", "t"] for n in range(MAX_CAUSATION)]).replace("'", '"')
    cause = make_record(id="e-3", type="order.created", causation_json=path)
    with pytest.raises(CausationError, match=f"the limit is {MAX_CAUSATION}"):
        context(cause).caused(Event("payment.made"))


@pytest.mark.req("S3.1")
async def test_a_loop_makes_a_dead_letter_at_once():
    handlers = Handlers(name="billing", transaction=False)

    @handlers.on("order.created")
    async def answer(event, tx, context):
        context.caused(Event("payment.made"))

    cause = make_record(type="order.created", causation_json='[["billing","order.created"]]')
    reporter = RecordingReporter()
    await handlers.open()
    await handlers.publish([cause], reporter)
    ((_, outcome),) = reporter.reports
    assert outcome.verdict.value == "rejected"
    assert "contains a cycle" in outcome.error


def test_only_a_third_parameter_is_given_the_context():
    handlers = Handlers(transaction=False)

    @handlers.on("a")
    async def with_default(event, tx, retries=3):
        return retries

    @handlers.on("b")
    async def with_context(event, tx, context=None):
        return context

    assert handlers.types == {"a", "b"}
    assert handlers.handles("a")
    assert not handlers.handles("c")


# -- settings ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "fast"}, {"missing_id": "guess"}, {"unhandled": "drop"}, {"max_in_flight": 0},
        {"stop_seconds": -1}, {"retry": 5}, {"name": "x" * 60}, {"nmae": "x"},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError):
        with_options(ConsumerSettings(), wrong, "consumer setting")


def test_what_is_too_large_is_cut_and_two_of_them_stay_two():  # X-M3
    from postroom.engine.consumer.size_limit import limited
    from postroom.sources.kafka.poller import KafkaDelivery

    def cut(message):
        return limited(KafkaDelivery(Partition("t", 0), 0, message), 1_000).message

    fits = Incoming("t", bytes(990), {"a": "b"})
    assert cut(fits) is fits
    for headers in ({}, {"postroom-id": "m-1"}):
        one, two = (cut(Incoming("t", bytes([n]) * 2_000, headers)) for n in (1, 2))
        assert one.body == two.body == b""
        assert "it has 20" in one.problem
        assert (one.headers["postroom-id"] == two.headers["postroom-id"]) is bool(headers)
    many = cut(
        Incoming("t", b"{}", {f"h{n}": "v" * 900 for n in range(1_000)} | {"x": "y" * 2_000})
    )
    assert len(many.headers) <= 102
    assert "x" not in many.headers


def test_arrivals_are_enough_by_number_or_by_size():
    from postroom.sources.kafka.poller import Arrivals, KafkaDelivery

    def delivered(count, size):
        message = Incoming("t", bytes(size), {})
        return [KafkaDelivery(Partition("t", 0), n, message) for n in range(count)]

    arrivals = Arrivals()
    arrivals.put(delivered(1_999, 10))
    assert not arrivals.are_enough
    arrivals.put(delivered(1, 10))
    assert arrivals.are_enough
    assert len(arrivals.take(500)) == 500
    assert not arrivals.are_enough
    arrivals.put(delivered(16, 1_000_000))
    assert arrivals.are_enough
    assert len(arrivals.take(2_000)) == 1_516
    assert not arrivals.are_enough
    assert arrivals.take(1) == []


@pytest.mark.promise("G7")
async def test_a_number_that_nobody_counts_to_is_refused():  # R-D7
    headers = {"postroom-id": "e", "postroom-type": "t", "postroom-kseq": str(2**63 - 1)}
    message = Incoming("orders", b"{}", headers)
    with pytest.raises(EventError, match="is larger than the maximum"):
        read(message, "hash")
    assert to_record(message).kseq is None  # as a dead letter it can be kept
    most = message._replace(headers={**headers, "postroom-kseq": str(2**53)})
    assert read(most, "hash")[0].kseq == 2**53
