"""From URLs and connection strings to what libpq is given, without a server."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from postroom.errors import ConfigError
from postroom.registry import load_store
from postroom.stores.postgres import PostgresStore
from postroom.stores.postgres.connector import Connector
from postroom.stores.postgres.settings import PostgresSettings
from postroom.stores.postgres.statements import hashes, load_queries, numbers

URL = "postgresql://anna:s%40cret@db.example:6432/shop"


def settings_of(url):
    return PostgresSettings.read(url, {})


def given(url):
    return conninfo_to_dict(settings_of(url).conninfo)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_both_schemes_are_known(scheme):
    store = load_store(f"{scheme}://localhost/shop?prefix=shop_")
    assert isinstance(store, PostgresStore)
    assert store.settings.prefix == "shop_"


def test_the_parts_of_a_url_go_to_libpq():
    assert given(URL + "?sslmode=require&target_session_attrs=read-write") == {
        "host": "db.example", "port": "6432", "user": "anna", "password": "s@cret",
        "dbname": "shop", "sslmode": "require", "target_session_attrs": "read-write",
    }  # fmt: skip


def test_several_hosts_and_none():
    assert given("postgresql://a:1,b/x") == {"host": "a,b", "port": "1,5432", "dbname": "x"}
    assert given("postgresql://a,b/x") == {"host": "a,b", "dbname": "x"}
    assert given("postgresql:///x?host=/var/run/postgresql") == {
        "host": "/var/run/postgresql", "dbname": "x"
    }  # fmt: skip


def test_our_own_options_are_taken_out():
    options = settings_of(
        URL + "?prefix=p_&schema=s&application_name=billing&connect_seconds=3&statement_seconds=4.5"
        "&lock_seconds=2&pool_size=7&notify=off"
    )
    assert (options.prefix, options.schema, options.tables) == ("p_", "s", '"s".p_')
    assert options.application_name == "billing"
    assert (options.connect_seconds, options.statement_seconds, options.lock_seconds) == (3, 4.5, 2)
    assert (options.pool_size, options.notify) == (7, False)
    assert "prefix" not in conninfo_to_dict(options.conninfo)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("pool_sise=3", "unknown option 'pool_sise'; did you mean 'pool_size'"),
        ("pool_size=1", "pool_size must be 2 or more"),
        ("pool_size=x", "must be a whole number"),
        ("lock_seconds=-1", "must be a number of seconds"),
        ("notify=maybe", "must be true or false"),
        ("prefix=A", "prefix 'A'"),
        ("schema=a.b", "schema 'a.b'"),
    ],
)
def test_what_makes_no_sense_is_told(query, said):
    with pytest.raises(ConfigError, match=said):
        PostgresStore(f"{URL}?{query}")


def test_another_scheme_is_refused():
    with pytest.raises(ConfigError, match="not a PostgreSQL URL: mysql://h/d"):
        PostgresStore("mysql://h/d")


def test_options_may_stand_beside_the_url():
    store = PostgresStore("postgresql://anna:hush@db/shop", schema="s", pool_size=4)
    assert store.settings.pool_size == 4
    assert store.url == "postgresql://anna@db/shop?schema=s"
    with pytest.raises(ConfigError, match="unknown postgresql option 'scheme'; did you"):
        PostgresStore("postgresql:", scheme="s")
    with pytest.raises(ConfigError, match="statement_seconds must be 0 or more"):
        PostgresStore("postgresql:", statement_seconds=-1)
    with pytest.raises(ConfigError, match="'schema' is given both in the URL and as an argument"):
        PostgresStore("postgresql://db/shop?schema=a", schema="b")


def test_secrets_are_shown_nowhere():
    options = settings_of(URL)
    store = PostgresStore(URL)
    for shown in (repr(options), str(options), options.shown, store.url, repr(store)):
        assert "cret" not in shown
    with pytest.raises(ConfigError) as raised:
        PostgresStore("postgresql://u:s3cret@h/d?port=nonsense&nonsense=1")
    assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_connection_has_limits_on_both_sides():
    options = settings_of(URL + "?statement_seconds=4&lock_seconds=0.5&connect_seconds=3")
    parameters = Connector(options).parameters()
    assert parameters["options"].split() == [
        "-c", "statement_timeout=4000", "-c", "lock_timeout=500",
        "-c", "idle_in_transaction_session_timeout=8000",
        "-c", "default_transaction_isolation=read\\", "committed",
    ]  # fmt: skip
    assert parameters["connect_timeout"] == 3
    assert parameters["tcp_user_timeout"] == 4000
    assert (parameters["keepalives"], parameters["keepalives_idle"]) == (1, 30)
    assert parameters["prepare_threshold"] is None
    assert parameters["autocommit"] is True


def test_the_users_own_options_stay():
    options = settings_of(URL + "?options=-csearch_path%3Dshop&keepalives_idle=5")
    assert Connector(options).parameters()["options"].endswith(" -csearch_path=shop")
    assert Connector(options).parameters(limited=False)["options"] == "-csearch_path=shop"
    assert Connector(options).parameters()["keepalives_idle"] == "5"
    assert "options" not in Connector(settings_of(URL)).parameters(limited=False)


def test_each_set_of_tables_has_a_channel():
    assert PostgresSettings(conninfo="").channel == "postroom_kick"
    assert PostgresSettings(conninfo="", prefix="a_").channel == "a_kick"
    assert PostgresSettings(conninfo="", schema="s").channel == "s.postroom_kick"
    long = [
        PostgresSettings(conninfo="", schema=schema, prefix=f"{'p' * 27}{n}_")
        for schema in ("a" + "s" * 61, "b" + "s" * 61, "s" * 61 + "a")
        for n in range(2)
    ]
    assert len({options.channel for options in long}) == len(long)
    assert all(len(options.channel) <= 63 for options in long)


# -- statements -----------------------------------------------------------------------------------
def test_the_tables_are_named_in_every_statement():
    for name, query in load_queries('"s".p_').items():
        assert "postroom_" not in query.sql, name
        assert ":" not in query.sql.replace("::", "").partition("--")[0], name


def test_arrays_are_written_as_postgresql_reads_them():
    assert numbers([]) == "{}"
    assert numbers([3, None, -1]) == "{3, NULL, -1}"
    assert hashes([]) is None
    assert hashes([b"\x00\xff", b"a"]) == '{"\\\\x00ff","\\\\x61"}'
