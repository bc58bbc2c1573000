"""Registry of URL schemes: loads stores, brokers and sources; imports drivers on first use."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from postroom.broker import Broker
from postroom.errors import ConfigError, MissingExtraError
from postroom.model.suggest import unknown
from postroom.model.url import Url
from postroom.source import Source
from postroom.store import Store

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Entry(NamedTuple):
    """The class of a scheme, and the extra that installs its driver (None: no driver needed)."""

    module: str
    name: str
    extra: str | None = None


STORES: Mapping[str, Entry] = {
    "mariadb": Entry("postroom.stores.mysql", "MysqlStore", "mysql"),
    "memory": Entry("postroom.stores.memory", "MemoryStore"),
    "mongodb": Entry("postroom.stores.mongo", "MongoStore", "mongo"),
    "mysql": Entry("postroom.stores.mysql", "MysqlStore", "mysql"),
    "postgres": Entry("postroom.stores.postgres", "PostgresStore", "postgres"),
    "postgresql": Entry("postroom.stores.postgres", "PostgresStore", "postgres"),
    "sqlite": Entry("postroom.stores.sqlite", "SqliteStore"),
}
BROKERS: Mapping[str, Entry] = {
    "amqp": Entry("postroom.brokers.rabbitmq", "RabbitBroker", "rabbitmq"),
    "amqps": Entry("postroom.brokers.rabbitmq", "RabbitBroker", "rabbitmq"),
    "handlers": Entry("postroom.engine.handlers.import_path", "import_handlers"),
    "kafka": Entry("postroom.brokers.kafka", "KafkaBroker", "kafka"),
    "memory": Entry("postroom.brokers.memory", "MemoryBroker"),
    "null": Entry("postroom.brokers.memory", "NullBroker"),
}
SOURCES: Mapping[str, Entry] = {
    "amqp": Entry("postroom.sources.rabbitmq.source", "RabbitSource", "rabbitmq"),
    "amqps": Entry("postroom.sources.rabbitmq.source", "RabbitSource", "rabbitmq"),
    "kafka": Entry("postroom.sources.kafka.source", "KafkaSource", "kafka"),
    "memory": Entry("postroom.sources.memory", "MemorySource"),
}
STORE_GROUP = "postroom.stores"
BROKER_GROUP = "postroom.brokers"
SOURCE_GROUP = "postroom.sources"
"""Entry points of these groups add schemes: the name is the scheme. The object is called with the
Url, and with the options that are given by name; if it has `from_url`, that is called instead. The
schemes above cannot be taken over."""
_NO_OPTIONS: Mapping[str, Any] = {}


def load_store(url: str | Url, **options: Any) -> Store:
    """Return the store of a URL, not yet opened; options can also be passed by name."""
    return cast("Store", _load(Url.parse(url), STORES, STORE_GROUP, "store", options))


def load_broker(url: str | Url) -> Broker:
    """Return the broker of a URL, not yet opened.

    `handlers:package.module:attribute` imports handlers from the application's code.
    """
    return cast("Broker", _load(Url.parse(url), BROKERS, BROKER_GROUP, "broker"))


def load_source(url: str | Url) -> Source:
    """Return the source (queue or topics) of a URL, not yet opened."""
    return cast("Source", _load(Url.parse(url), SOURCES, SOURCE_GROUP, "source"))


async def migrate(url: str) -> int:
    """Create or update the tables of the store of a URL; returns their version.

    Idempotent, and safe in several processes at once.
    """
    store = load_store(url)
    try:
        return await store.migrate()
    finally:
        await store.close()


def _load(
    url: Url,
    table: Mapping[str, Entry],
    group: str,
    what: str,
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> object:
    entry = table.get(url.scheme)
    if entry is None:
        return _build(_plugin(url, table, group, what), url, options)
    try:
        maker = getattr(importlib.import_module(entry.module), entry.name)
        return _build(maker, url, options)
    except ImportError as error:
        ours = (error.name or "postroom").partition(".")[0] == "postroom"
        if ours or entry.extra is None:
            raise
        raise MissingExtraError(entry.extra, str(error.name)) from error


def _build(maker: Any, url: Url, options: Mapping[str, Any]) -> object:
    make: Callable[..., object] = getattr(maker, "from_url", maker)
    if options:
        try:
            inspect.signature(make).bind(url, **options)
        except TypeError as error:
            raise ConfigError(f"{url.scheme}: {error}; it takes its options in the URL") from error
    return make(url, **options)


def _plugin(url: Url, table: Mapping[str, Entry], group: str, what: str) -> Any:
    scheme = url.scheme
    plugins = {point.name: point for point in entry_points(group=group)}
    point = plugins.get(scheme)
    if point is None:
        known = {*table, *plugins}
        raise ConfigError(unknown(f"{what} scheme", scheme, known, meant=_meant(url, known)))
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the plug-in for {scheme!r} ({point.value}) cannot be loaded: {error}"
        ) from error


# Names that people write for schemes, and the servers' usual ports.
_SYNONYMS = {
    "rabbitmq": "amqp", "rabbit": "amqp", "rabbitmqs": "amqps", "redpanda": "kafka",
    "confluent": "kafka", "psql": "postgresql", "pgsql": "postgresql", "pg": "postgresql",
    "maria": "mariadb", "mongo": "mongodb", "file": "sqlite",
}  # fmt: skip
_PORTS = {
    "9092": "kafka://{}", "9093": "kafka://{}", "9094": "kafka://{}", "19092": "kafka://{}",
    "5672": "amqp://{}", "5671": "amqps://{}", "5432": "postgresql://{}/database",
    "3306": "mysql://{}/database", "27017": "mongodb://{}/database",
}  # fmt: skip
_HOST_AND_PORT = re.compile(r"([0-9]{2,5})(?:,[a-z0-9.-]+:[0-9]{2,5})*(?=/|$)")


def _meant(url: Url, known: Collection[str]) -> str | None:
    """Return the URL or scheme that was probably meant; never one with a user or an option."""
    synonym = _SYNONYMS.get(url.scheme)
    if synonym in known:
        return f"{synonym}:{'//' if url.hosts else ''}"
    if url.hosts or url.query or url.driver:
        return None
    if port := _HOST_AND_PORT.match(url.path):  # the host was taken for the scheme
        guess = _PORTS.get(port[1], "kafka://{}")
        return guess.format(f"{url.scheme}:{port[0]}") if guess.partition(":")[0] in known else None
    if "handlers" in known and url.path.isidentifier():  # `package.module:attribute`
        return f"handlers:{url.reveal()}"
    return None


def entry_points(*, group: str) -> Iterable[EntryPoint]:
    """Return the plug-ins. They are looked for on first use: importing postroom must be quick."""
    from importlib import metadata

    return metadata.entry_points(group=group)
