"""The parts of the MongoDB store that need no server: addresses, places, errors, the schema's text."""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import UTC, datetime

import bson
import pytest
from bson import Int64, Timestamp
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
    WTimeoutError,
)

from postroom.errors import (
    ConfigError,
    StoreError,
    StoreLockedError,
    StoreRefusedError,
    StoreRetryableError,
    StoreUnknownError,
)
from postroom.event import Event
from postroom.outbox import to_row
from postroom.registry import load_store
from postroom.stores.mongo import MongoStore, read_past_keys
from postroom.stores.mongo.blocks import block_of
from postroom.stores.mongo.collector import _found
from postroom.stores.mongo.connection import UNKNOWN_COMMIT, commit
from postroom.stores.mongo.embedded import _BOUNDS, element_of, row_of
from postroom.stores.mongo.errors import is_transient, translate
from postroom.stores.mongo.read_past_keys import Depths
from postroom.stores.mongo.settings import read_address
from postroom.transactions.mongo.documents import FIELDS, Place, document, place_numbers
from tests.sim.loop import virtual_time

URL = "mongodb://u:p%40ss@a:1,b:2/shop?replicaSet=rs0&prefix=billing_&w=majority"


# -- addresses ---------------------------------------------------------------------------------
def test_a_url_is_the_drivers_but_for_our_own_options():
    address = read_address(URL)
    assert address.target == "mongodb://u:p%40ss@a:1,b:2/shop?replicaSet=rs0&w=majority"
    assert address.database == "shop"


def test_the_store_of_a_url():
    store = load_store(URL)
    assert isinstance(store, MongoStore)
    assert (store.database, store.prefix) == ("shop", "billing_")
    assert "p%40ss" not in store.url
    assert load_store("mongodb+srv://host.example/shop").database == "shop"


def test_time_limits_are_ours_unless_the_url_says_otherwise():
    assert read_address("mongodb://h/d").options["socketTimeoutMS"] == 10_000
    assert "socketTimeoutMS" not in read_address("mongodb://h/d?sockettimeoutms=1").options


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mongodb://host", "names no database"),
        ("mongodb://host/d?replicaset=r&prefx=x", "(?i)unknown option"),
        ("mongodb://host/d?prefix=1x", "prefix '1x'"),
        ("mongodb://host/d?transactions=maybe", "true or false"),
        ("mysql://host/d", "not a MongoDB URL"),
    ],
)
def test_a_wrong_url_says_what_would_be_right(url, words):
    with pytest.raises(ConfigError, match=words):
        MongoStore(url)


# -- places ------------------------------------------------------------------------------------
@pytest.mark.promise("W6")
def test_a_place_is_one_number_and_back():
    places = [
        Place(Timestamp(1, 1), 1),
        Place(Timestamp(1, 1), 2**63 - 1),
        Place(Timestamp(1, 2), 1),
        Place(Timestamp(1_700_000_000, 2**32 - 1), 5),
        Place(Timestamp(1_700_000_001, 0), 0),
        Place(Timestamp(2**32 - 1, 2**32 - 1), 2**63 - 1),
    ]
    numbers = [place.seq for place in places]
    assert numbers == sorted(set(numbers))
    assert [Place.of(number) for number in numbers] == places
    assert numbers[0] == 0x1_00000001_00000000_00000001


@pytest.mark.promise("W6")
def test_the_numbers_of_a_process_never_go_back():
    found = [n for _ in range(50) for n in place_numbers(3, b"\xab\xcd")]
    assert found == sorted(set(found))
    assert {n & 0xFFF for n in found} == {0xBCD}
    assert all(isinstance(n, Int64) and n < 2**63 for n in found)


# -- errors ------------------------------------------------------------------------------------
def labelled(error, label):
    error._add_error_label(label)
    return error


@pytest.mark.parametrize(
    ("error", "in_transaction", "alone"),
    [
        (OperationFailure("x", 112), StoreLockedError, StoreLockedError),
        (labelled(OperationFailure("x", 251), "TransientTransactionError"), StoreRetryableError, StoreUnknownError),
        (OperationFailure("not primary", 10107), StoreRetryableError, StoreUnknownError),
        (OperationFailure("shutting down", 91), StoreRetryableError, StoreUnknownError),
        (NotPrimaryError("x"), StoreRetryableError, StoreUnknownError),
        (AutoReconnect("x"), StoreRetryableError, StoreUnknownError),
        (NetworkTimeout("x"), StoreRetryableError, StoreUnknownError),
        (ServerSelectionTimeoutError("x"), StoreRetryableError, StoreUnknownError),
        (WTimeoutError("x", 64), StoreRetryableError, StoreUnknownError),
        (
            ConfigurationError("Sessions are not supported by this MongoDB deployment"),
            StoreRetryableError,
            StoreRetryableError,
        ),
        (OperationFailure("not authorized", 13), StoreError, StoreError),
        (OperationFailure("Document failed validation", 121), StoreRefusedError, StoreRefusedError),
    ],
)  # fmt: skip
@pytest.mark.promise("L5")
def test_what_an_error_means(error, in_transaction, alone):
    assert type(translate(error, harmless=True)) is in_transaction
    assert type(translate(error, harmless=False)) is alone


def test_a_refusal_is_not_repeated():
    assert not is_transient(OperationFailure("not authorized", 13))
    assert not is_transient(ConfigurationError("bad option"))
    assert is_transient(OperationFailure("x", 112))


# -- the schema as text ------------------------------------------------------------------------
def test_the_migration_can_be_shown_for_mongosh():
    text = MongoStore("mongodb://h/d", prefix="billing_").migration_sql()
    commands = [
        json.loads(line.removeprefix("db.runCommand(").removesuffix(");"))
        for line in text.splitlines()
        if line.startswith("db.runCommand(")
    ]
    made = [command["create"] for command in commands if "create" in command]
    assert made == [
        "billing_outbox", "billing_lease", "billing_member", "billing_block", "billing_counter",
        "billing_inbox", "billing_audit", "billing_meta", "billing_dead",
        "billing_control", "billing_operation",
    ]  # fmt: skip
    assert "postroom_" not in text
    assert '_id: "schema_version"' in text
    assert MongoStore("mongodb://h/d").migration_sql(after=2) == ""


@pytest.mark.parametrize(
    "options",
    [
        "authMechanismProperties=s3cret",
        "authMechanismProperties=SERVICE_NAME:mongodb,s3cret:s3cret",
        "tls=true&tlsCertificateKeyFile=/nowhere/s3.pem&tlsCertificateKeyFilePassword=s3cret",
    ],
)
def test_a_url_that_is_wrong_is_refused_without_its_secrets(options):  # X-M7
    with pytest.raises(ConfigError, match="MongoDB URL: ") as caught:
        read_address(f"mongodb://h/d?{options}")
    assert "s3cret" not in str(caught.value)


# T/E
@pytest.mark.req("S2.2")
@pytest.mark.parametrize("year", [1, 9999])
def test_an_instant_at_the_end_of_time_is_stored_and_can_be_read_by_every_driver(year):
    at = datetime.max if year == 9999 else datetime.min
    event = Event("t", available_at=at.replace(tzinfo=UTC), occurred_at=at.replace(tzinfo=UTC))
    written = document(to_row(event, "t"), Timestamp(1, 1), Int64(1))
    fields = bson.decode(bson.encode({"fields": written["$mergeObjects"][0]["$literal"]}))["fields"]
    assert fields["available_at"].year == fields["occurred_at"].year == year


@pytest.mark.promise("G4")
def test_an_embedded_event_does_not_overtake_one_before_it_that_has_no_place_yet():
    place = {"ct": Timestamp(7, 1), "n": Int64(5)}
    first, second, third = (element_of(to_row(Event("t", id=name), "topic")) for name in "abc")
    found = _found({"_id": 1, "events": [{**first, **place}, second, {**third, **place}]})
    assert [row.id for row, _ in found.placed] == ["a"]
    assert [row.id for row in found.unplaced] == ["b", "c"]


def test_writer_and_reader_agree_on_the_fields_of_an_event():
    for event in (Event("t"), Event("t", available_at=datetime(2030, 1, 1, tzinfo=UTC))):
        fixed, decided = document(to_row(event, "topic"), None, 1)["$mergeObjects"]
        assert {**fixed["$literal"], **decided}.keys() == {*FIELDS, "awaits"}


@pytest.mark.promise("W7")
def test_a_due_time_between_two_milliseconds_is_the_later_one():
    due = datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    (fixed, decided) = document(to_row(Event("t", available_at=due), "topic"), None, 1)[
        "$mergeObjects"
    ]
    assert int(fixed["$literal"]["available_at"]) == int(due.timestamp()) * 1000 + 1
    assert decided["awaits"]["$cond"][1] == fixed["$literal"]["available_at"]


@pytest.mark.promise("B4")
def test_a_head_that_was_written_again_elsewhere_holds_its_key_no_longer():
    place = {"ct": Timestamp(7, 1), "n": Int64(5)}
    block = {"key_hash": b"k" * 16, "head": "e", **place}
    assert block_of({**block, "heads": [{"stage": "waiting", **place}]}).live
    assert not block_of({**block, "heads": [{"stage": "over", **place}]}).live
    assert not block_of({**block, "heads": [{"stage": "ready", **place, "n": Int64(6)}]}).live
    assert not block_of({**block, "heads": []}).live


def test_an_embedded_event_with_a_number_out_of_bounds_is_none():
    element = element_of(to_row(Event("t", id="e"), "topic"))
    assert row_of(element) is not None
    for name, (low, high) in _BOUNDS.items():
        for wrong in (low - 1, high + 1):
            assert row_of({**element, name: wrong}) is None, name


@pytest.mark.promise("F2")
def test_a_commit_that_stays_unknown_is_asked_for_with_growing_pauses():
    asked = []

    class Session:
        async def commit_transaction(self):
            asked.append(asyncio.get_running_loop().time())
            raise OperationFailure("who knows", details={"errorLabels": [UNKNOWN_COMMIT]})

    async def story():
        with pytest.raises(StoreUnknownError, match="the commit was not confirmed"):
            await commit(Session())

    with virtual_time() as loop:
        loop.run_until_complete(story())
    gaps = [b - a for a, b in itertools.pairwise(asked)]
    assert gaps[:4] == pytest.approx([0.002, 0.004, 0.008, 0.016])
    assert 90 < len(asked) < 115  # in ten seconds


async def test_two_reads_at_once_may_find_that_a_lane_is_no_longer_deep(monkeypatch):
    """The groups of a relay share what they know of a stream's lanes."""
    depths = Depths({3: b"key"}, rest_until=float("inf"))

    async def walk(*arguments):
        depths.still(())  # another group's read, for which the key is not busy
        return []

    monkeypatch.setattr(read_past_keys, "_walk", walk)
    assert await read_past_keys._look_into(None, {}, [3], {b"key"}, depths, 10, None) == []
    assert depths.busy == {}
