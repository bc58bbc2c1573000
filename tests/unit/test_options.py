"""Options by name: what type checkers are told equals the settings; durations; one convention."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin, get_type_hints

import pytest

from postroom import (
    Bus,
    Constant,
    Consumer,
    ConsumerSettings,
    Handlers,
    Inbox,
    Module,
    Relay,
    RelaySettings,
    Retry,
    SyncInbox,
)
from postroom import options as declared
from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.brokers.rabbitmq.settings import RabbitSettings
from postroom.bus import ModuleOptions
from postroom.errors import ConfigError
from postroom.model.durations import Seconds
from postroom.registry import load_broker, load_source, load_store
from postroom.sources.kafka.settings import KafkaSourceSettings
from postroom.sources.kafka.source import KafkaSource
from postroom.sources.rabbitmq.settings import RabbitSourceSettings
from postroom.sources.rabbitmq.source import RabbitSource
from postroom.stores.mongo import MongoStore, Recent, Reconciler
from postroom.stores.mongo.settings import MongoSettings
from postroom.stores.mysql import MysqlStore
from postroom.stores.mysql.settings import MysqlSettings
from postroom.stores.opening import open_store
from postroom.stores.postgres import PostgresNotifier, PostgresStore
from postroom.stores.postgres.settings import PostgresSettings
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite.settings import SqliteSettings
from postroom.telemetry.log import LogObserver

WIDER = {  # an option takes more than the setting keeps
    (MongoSettings, "embedded"): Sequence[str],
    (KafkaSourceSettings, "topic"): str | Sequence[str],
}
LINK = {
    "exchange", "exchange_type", "declare", "queue_type", "single", "bindings", "connect_seconds",
    "heartbeat_seconds", "cafile", "certfile", "keyfile", "verify",
}  # fmt: skip


def types_of(settings, *, without=(), only=None):
    """Return name → what a constructor takes for it."""
    hints = get_type_hints(settings)
    names = [f.name for f in fields(settings) if f.name not in without]
    return {
        name: _seconds(hints[name])
        if name.endswith("_seconds")
        else WIDER.get((settings, name), hints[name])
        for name in names
        if only is None or name in only
    }


def _seconds(hint):
    return Seconds | None if type(None) in get_args(hint) else Seconds


PAIRS = {
    declared.RelayOptions: types_of(RelaySettings),
    declared.BusOptions: types_of(RelaySettings, without=["stream"]),
    declared.ConsumerOptions: types_of(ConsumerSettings),
    declared.SqliteOptions: types_of(SqliteSettings),
    declared.PostgresOptions: types_of(PostgresSettings, without=["conninfo"]),
    declared.MysqlOptions: types_of(MysqlSettings),
    declared.MongoOptions: types_of(MongoSettings),
    declared.KafkaOptions: types_of(KafkaSettings, without=["servers"]),
    declared.RabbitOptions: types_of(RabbitSettings),
    declared.KafkaSourceOptions: types_of(KafkaSourceSettings, without=["servers"]),
    declared.RabbitSourceOptions: types_of(RabbitSourceSettings, without=["link"])
    | types_of(RabbitSettings, only=LINK),
}


@pytest.mark.parametrize("options", PAIRS, ids=lambda kind: kind.__name__)
def test_the_options_are_the_settings(options):
    assert get_type_hints(options) == PAIRS[options]
    assert not options.__required_keys__


def test_open_store_takes_the_options_of_all_stores():
    expected: dict[str, Any] = {}
    for store in ("Sqlite", "Postgres", "Mysql", "Mongo"):
        expected |= get_type_hints(getattr(declared, f"{store}Options"))
    assert get_type_hints(declared.StoreOptions) == expected


def test_the_options_of_a_module_are_those_of_handlers():
    taken = get_type_hints(Handlers.__init__)
    names = {"return", "name", "prefix"}
    assert get_type_hints(ModuleOptions) == {n: t for n, t in taken.items() if n not in names}


@pytest.mark.parametrize(
    ("constructor", "options"),
    [
        (Relay, declared.RelayOptions),
        (Consumer, declared.ConsumerOptions),
        (Bus, declared.BusOptions),
        (Module, ModuleOptions),
        (SqliteStore, declared.SqliteOptions),
        (PostgresStore, declared.PostgresOptions),
        (PostgresNotifier, declared.PostgresOptions),
        (MysqlStore, declared.MysqlOptions),
        (MongoStore, declared.MongoOptions),
        (KafkaBroker, declared.KafkaOptions),
        (RabbitBroker, declared.RabbitOptions),
        (KafkaSource, declared.KafkaSourceOptions),
        (RabbitSource, declared.RabbitSourceOptions),
        (open_store, declared.StoreOptions),
    ],
    ids=lambda value: value.__name__,
)
def test_a_constructor_is_typed_with_its_options(constructor, options):
    call = constructor.__init__ if inspect.isclass(constructor) else constructor
    (given,) = (
        p.name for p in inspect.signature(call).parameters.values() if p.kind is p.VAR_KEYWORD
    )
    hint = get_type_hints(call)[given]
    assert get_origin(hint) is Unpack
    assert get_args(hint) == (options,)


# -- one convention for stores, brokers and sources -----------------------------------------------
MADE = [
    (SqliteStore, load_store, "sqlite:///app.db", {"busy_seconds": 2.0}),
    (PostgresStore, load_store, "postgresql://db/shop", {"lock_seconds": 2.0}),
    (MysqlStore, load_store, "mysql://db/shop", {"lock_seconds": 2.0}),
    (MongoStore, load_store, "mongodb://db/shop", {"embedded": ("pages",)}),
    (KafkaBroker, load_broker, "kafka://db:1", {"topic": "orders", "linger_seconds": 2.0}),
    (RabbitBroker, load_broker, "amqp://db", {"connect_seconds": 2.0}),
    (KafkaSource, load_source, "kafka://db:1?topic=a&group=b", {"start": "latest"}),
    (RabbitSource, load_source, "amqp://db?queue=a", {"heartbeat_seconds": 2.0}),
]


def text(value):
    return ",".join(value) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(
    ("kind", "load", "url", "options"), MADE, ids=lambda v: getattr(v, "__name__", "")
)
class TestConvention:
    def test_an_option_is_given_in_the_url_or_by_name(self, kind, load, url, options):
        mark = "&" if "?" in url else "?"
        query = mark + "&".join(f"{name}={text(value)}" for name, value in options.items())
        assert (
            kind(url, **options).settings
            == kind(url + query).settings
            == load(url + query).settings
        )
        for name, value in options.items():
            link = kind(url, **options).settings
            found = getattr(link, name) if hasattr(link, name) else getattr(link.link, name)
            assert found == value
        with pytest.raises(ConfigError, match="is given both in the URL and as an argument"):
            kind(url + query, **options)

    def test_an_unknown_option_suggests_the_nearest(self, kind, load, url, options):
        (name, value), *_ = options.items()
        wrong = name[:-1] + "x"
        for call in (
            lambda: kind(url, **{wrong: value}),
            lambda: kind(f"{url}&{wrong}=1" if "?" in url else f"{url}?{wrong}=1"),
        ):
            with pytest.raises(ConfigError, match=f"did you mean '{name}'|{wrong}"):
                call()

    def test_a_url_of_another_kind_is_refused(self, kind, load, url, options):
        with pytest.raises(ConfigError):
            kind("redis://db/1")

    def test_a_timedelta_is_a_number_of_seconds(self, kind, load, url, options):
        seconds = {n: v for n, v in options.items() if n.endswith("_seconds")}
        spans = {n: timedelta(seconds=v) for n, v in seconds.items()}
        assert kind(url, **spans).settings == kind(url, **seconds).settings


def test_a_path_names_an_sqlite_file(tmp_path):
    assert SqliteStore(tmp_path / "a?b.db").path == tmp_path / "a?b.db"
    assert SqliteStore(Path("a.db"), prefix="shop_").tables.prefix == "shop_"


# -- durations ------------------------------------------------------------------------------------
def test_settings_take_timedeltas():
    settings = RelaySettings(poll_seconds=timedelta(milliseconds=250), lease_seconds=20)
    assert (settings.poll_seconds, settings.lease_seconds) == (0.25, 20)
    assert type(settings.poll_seconds) is float
    assert ConsumerSettings(dedup_seconds=timedelta(days=1)).dedup_seconds == 86_400
    assert Handlers(time_limit_seconds=timedelta(minutes=1)).time_limit_seconds == 60


@pytest.mark.parametrize(
    "call",
    [Handlers, Inbox.forget, SyncInbox.forget, Reconciler, LogObserver],
    ids=lambda call: call.__qualname__,
)
def test_every_duration_may_be_a_timedelta(call):
    hints = get_type_hints(call.__init__ if inspect.isclass(call) else call)
    spans = {name: hint for name, hint in hints.items() if name.endswith("_seconds")}
    assert spans
    assert all(hint in (Seconds, Seconds | None) for hint in spans.values())


def test_timedeltas_are_seconds():
    assert Retry(after=timedelta(minutes=1)).after_seconds == 60
    assert Recent("changed", timedelta(hours=1)).seconds == 3_600
    assert Constant(timedelta(seconds=3))(1) == 3
    reconciler = Reconciler(
        "mongodb://h/d", "pages", lambda _: None, Recent("at", 60.0),
        every_seconds=timedelta(minutes=1), grace_seconds=timedelta(seconds=1),
        keep_done_seconds=timedelta(hours=1),
    )  # fmt: skip
    assert reconciler.every_seconds == 60


@pytest.mark.parametrize("kind", [RelaySettings, ConsumerSettings])
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"stop_seconds": timedelta(0)}, "stop_seconds must be more than 0"),
        ({"stop_seconds": timedelta(days=40_000)}, "at most 100 years"),
        ({"stop_seconds": float("nan")}, "more than 0"),
        ({"stop_seconds": "5"}, "must be a number"),
        ({"suspect_limit": timedelta(seconds=1)}, "suspect_limit must be a number"),
        ({"suspect_limit": 1.5}, "suspect_limit must be a whole number"),
        ({"suspect_limit": True}, "suspect_limit must be a number"),
    ],
)
def test_numbers_are_checked_in_one_way(kind, given, problem):
    with pytest.raises(ConfigError, match=problem):
        kind(**given)


def test_a_bus_refuses_a_setting_when_it_is_made():
    with pytest.raises(
        ConfigError, match="unknown bus setting 'pol_seconds'; did you mean 'poll_sec"
    ):
        Bus("sqlite:///app.db", pol_seconds=1)
    with pytest.raises(ConfigError, match="unknown bus setting 'stream'"):
        Bus("sqlite:///app.db", stream="mail")
    with pytest.raises(ConfigError, match="poll_seconds must be more than 0"):
        Bus("sqlite:///app.db", poll_seconds=-1)


SECRET = {"sasl.password": "hunter22", "client.id": "shop"}


@pytest.mark.parametrize(
    "made",
    [
        KafkaBroker("kafka://h:1", config=SECRET),
        KafkaSource("kafka://h:1?topic=a&group=b", config=SECRET),
        PostgresStore("postgresql://u:hunter22@h/d"),
        RabbitBroker("amqp://u:hunter22@h"),
    ],
    ids=lambda made: type(made).__name__,
)
def test_settings_show_no_secret(made):
    assert "hunter22" not in repr(made.settings)
