"""The MySQL store without a server: URLs, options, statements, and what errors mean."""

from __future__ import annotations

import re
from itertools import chain

import pymysql
import pytest
from asyncmy import errors

from postroom.errors import (
    ConfigError,
    SchemaError,
    StoreError,
    StoreLockedError,
    StoreRefusedError,
    StoreRetryableError,
)
from postroom.registry import load_store
from postroom.stores.mysql import MysqlStore
from postroom.stores.mysql.errors import code_of, is_conflict, is_lost, translate
from postroom.stores.mysql.read import lanes_of
from postroom.stores.mysql.session import flavour_of
from postroom.stores.mysql.statements import cut, load_migrations, load_queries
from postroom.stores.mysql.tls import Tls


# -- URLs -----------------------------------------------------------------------------------------
def test_a_url_names_everything():
    store = MysqlStore(
        "mysql://anna:p%40ss@db.example:3307/shop?prefix=post_&pool_size=9&connect_seconds=2.5"
        "&statement_seconds=7&lock_seconds=3&ssl_ca=/etc/ca.pem"
    )
    target = store.target
    assert (target.host, target.port, target.database) == ("db.example", 3307, "shop")
    assert (target.user, target.password) == ("anna", "p@ss")
    assert (target.connect_seconds, target.statement_seconds, target.lock_seconds) == (2.5, 7.0, 3)
    assert target.tls == Tls("verify_identity", "/etc/ca.pem")
    assert store.prefix == "post_"
    assert store.url == "mysql://anna@db.example:3307/shop?prefix=post_"


def test_without_an_option_of_tls_there_is_none():
    assert MysqlStore("mysql://db/shop").target.tls is None
    target = MysqlStore("mysql://db/shop?ssl_mode=required").target
    assert target.tls == Tls("required")
    with pytest.raises(ConfigError, match="cannot use /no/such.pem"):
        Tls("verify_ca", "/no/such.pem").context()
    with pytest.raises(ConfigError, match="unknown ssl_mode 'maybe'"):
        MysqlStore("mysql://localhost/shop", ssl_mode="maybe")


@pytest.mark.parametrize("scheme", ["mysql", "mariadb", "mysql+asyncmy"])
def test_the_schemes(scheme):
    store = load_store(f"{scheme}://db/shop")
    assert isinstance(store, MysqlStore)
    assert (store.target.host, store.target.port) == ("db", 3306)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://db", "database is missing"),
        ("mysql+pymysql://db/shop", "not a MySQL URL"),
        ("sqlite:///a.db", "not a MySQL URL"),
        ("mysql://one,two/shop", "one host"),
        ("mysql://db/shop?prefix=1x", "prefix"),
        ("mysql://db/shop?pool_size=0", "pool_size must be more than 0"),
        ("mysql://db/shop?lock_seconds=0", "lock_seconds must be more than 0"),
        ("mysql://db/shop?lock_seconds=0.5", "whole number"),
        ("mysql://db/shop?ssl_mode=maybe", "ssl_mode"),
        ("mysql://db/shop?ssl_key=/k.pem", "ssl_key needs ssl_cert"),
        ("mysql://db/shop?poolsize=1", "did you mean 'pool_size'"),
    ],
)
def test_what_makes_no_sense_is_refused(url, problem):
    with pytest.raises(ConfigError, match=problem):
        MysqlStore(url)


async def test_a_store_that_is_not_open_says_so():
    store = MysqlStore("mysql://localhost/shop")
    with pytest.raises(StoreError, match="not open"):
        await store.streams()
    with pytest.raises(StoreError, match="not open"):
        store.transaction()
    await store.close()


# -- statements -----------------------------------------------------------------------------------
def test_every_table_has_the_prefix():
    for name, text in load_queries("mine_").items():
        assert "postroom_" not in text, name
        assert ";" not in text, name
    steps = load_migrations("mine_")
    assert all("postroom_" not in statement for step in steps for statement in step.statements)
    assert [len(step.statements) for step in steps] == [10, 5]


def test_every_parameter_is_in_the_drivers_style():
    for name, text in load_queries("postroom_").items():
        assert not re.search(r"(?<!['\w]):[a-z]", text), name
        assert "%" not in re.sub(r"%\(\w+\)s", "", text), name


def test_only_what_mysql_8_and_mariadb_share():
    """Words that one of the two does not know."""
    alien = ("RETURNING", "LATERAL", "VALUES ROW", "VALUES(", "NULLS FIRST", " AS new ON DUPLICATE")
    queries = dict(load_queries("postroom_"))
    assert "RETURNING" in queries.pop("settle_delete_returning")  # never sent to MySQL
    everything = [
        *queries.values(),
        *chain(*(step.statements for step in load_migrations("postroom_"))),
    ]
    for text in everything:
        assert not [word for word in alien if word in text.upper()], text


def test_migration_sql_is_for_people():
    text = MysqlStore("mysql://localhost/shop", prefix="mine_").migration_sql()
    assert "CREATE TABLE IF NOT EXISTS mine_outbox" in text
    assert "'schema_version', '2'" in text
    assert MysqlStore("mysql://localhost/shop").migration_sql(after=2) == ""
    assert len(cut(text)) == 10 + 5 + 3


def test_a_key_is_left_out_in_its_own_lane_only():
    sql = load_queries("postroom_")
    text = lanes_of(
        sql, [3, 5], [bytes([3]) + bytes(15), bytes([64 + 5]) + bytes(15)], {3: 7, 5: 8}
    )
    one, two = text.split(" UNION ALL ")
    assert "slot = 3 AND key_hash NOT IN (0x03000000000000000000000000000000)" in one
    assert "slot = 5 AND key_hash NOT IN (0x45000000000000000000000000000000)" in two
    assert "h.lane = 3 AND h.owner = %(owner)s AND h.token = 7" in one
    assert "h.lane = 5 AND h.owner = %(owner)s AND h.token = 8" in two


@pytest.mark.parametrize(
    ("version", "flavour"),
    [("8.0.36", "mysql"), ("10.11.6-MariaDB-0+deb12u1", "mariadb"), ("5.5.5-10.6.1-MariaDB", "mariadb")],
)  # fmt: skip
def test_the_two_families(version, flavour):
    assert flavour_of(version) == flavour


# -- errors ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("code", [1020, 1205, 1213, 1317, 1969, 3024, 3572])
def test_what_may_be_repeated(code):
    error = errors.OperationalError(code, "said")
    assert isinstance(translate(error, "shop"), StoreRetryableError)
    assert is_conflict(error)
    assert not is_lost(error)


@pytest.mark.parametrize("code", [0, 1053, 1927, 2006, 2013, 3169, 4031])
def test_what_ends_a_connection(code):
    error = errors.OperationalError(code, "said")
    assert is_lost(error)
    found = translate(error, "shop")
    assert type(found) is StoreError
    assert "lost" in str(found)


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset"), TimeoutError(), EOFError()])
def test_what_ends_a_connection_below_the_driver(error):
    assert is_lost(error)
    assert code_of(error) is None
    assert "lost" in str(translate(error, "shop"))


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (1146, SchemaError, "postroom migrate"),
        (1049, SchemaError, "CREATE DATABASE `shop`"),
        (1045, StoreError, "GRANT SELECT, INSERT, UPDATE, DELETE ON `shop`"),
        (1142, StoreError, "GRANT SELECT, INSERT, UPDATE, DELETE ON `shop`"),
        (1290, StoreError, "primary"),
        (1114, StoreError, "disk is full"),
        (1153, StoreRefusedError, "max_allowed_packet"),
        (1205, StoreLockedError, "lock"),
        (1264, StoreRefusedError, "1264"),
        (4025, StoreRefusedError, "4025"),
        (1665, StoreError, "binlog_format"),
        (1064, StoreError, r"said \(1064\)"),
    ],
)
def test_what_to_do(code, kind, words):
    found = translate(errors.ProgrammingError(code, "said"), "shop")
    assert type(found) is kind
    assert re.search(words, str(found))


def test_the_errors_of_pymysql_are_known_too():
    error = pymysql.err.OperationalError(1213, "deadlock")
    assert code_of(error) == 1213
    assert is_conflict(error)
    assert not is_conflict(ValueError(1213))


def test_a_packet_out_of_order_ends_the_connection():
    assert is_lost(errors.InternalError("Packet sequence number wrong - got 3 expected 1"))
