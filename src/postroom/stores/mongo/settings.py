"""The settings of a MongoDB store: its URL holds the driver's options and postroom's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pymongo.errors import PyMongoError
from pymongo.uri_parser import split_options

from postroom.errors import ConfigError
from postroom.model.option_reader import Readers, names_of, read_options, readers, refuse_unknown
from postroom.model.url import MASK, Url, is_secret
from postroom.transactions.queries import DEFAULT_PREFIX, check_prefix

_DEFAULTS = {
    # A relay without an answer must give up well before its lease expires, and try again.
    "serverSelectionTimeoutMS": 5_000,
    "connectTimeoutMS": 5_000,
    "socketTimeoutMS": 10_000,
    "appName": "postroom",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MongoSettings:
    """How a store uses its database.

    database        the database, if the URL does not name it; not an option of the URL
    prefix          the prefix of the collections' names
    transactions    None: used on a replica set; a standalone has none. False: work
                    without them, whatever the server supports
    embedded        collections of this database whose documents carry events (EmbeddedOutbox):
                    the relay collects them. `migrate` gives these collections an index
    """

    database: str | None = None
    prefix: str = DEFAULT_PREFIX
    transactions: bool | None = None
    embedded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_prefix(self.prefix)
        object.__setattr__(self, "embedded", tuple(self.embedded))


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a store: the driver's URL, defaults for its options, and a database."""

    target: str = field(repr=False)  # it may contain a password
    options: dict[str, Any]
    database: str


def names(text: str) -> tuple[str, ...]:
    """Collection names, separated by commas."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise ValueError("collection names, separated by commas")
    return found


_READERS: Readers = {**readers(MongoSettings, skip=("database",)), "embedded": names}


def read_settings(where: str | Url, given: Mapping[str, Any]) -> tuple[Address, MongoSettings]:
    """Return the server that a URL names, and the settings from both places.

    Options of the URL that are not postroom's own are the driver's.
    """
    url = Url.parse(where)
    if url.scheme != "mongodb":
        raise ConfigError(f"not a MongoDB URL: {url}; write mongodb://host/database")
    refuse_unknown("mongodb option", given, names_of(MongoSettings))
    if isinstance(given.get("embedded"), str):
        raise ConfigError("embedded must be a list of collections, as in embedded=['pages']")
    drivers = {name: str for name, _ in url.query}
    found = read_options(url, {**drivers, **_READERS}, given, also=("database",))
    own = {name: value for name, value in found.items() if name in names_of(MongoSettings)}
    settings = MongoSettings(**own)
    return read_address(url, settings.database), settings


def read_address(where: str | Url, database: str | None = None) -> Address:
    """Parse a URL. Raises ConfigError for an unknown option, and if no database is named."""
    url = Url.parse(where)
    name = database or url.database
    if not name:
        raise ConfigError(f"{url} names no database; write mongodb://host/database")
    head, _, query = url.reveal().partition("?")
    parts = [part for part in query.split("&") if part and part.partition("=")[0] not in _READERS]
    try:
        given = split_options("&".join(parts), validate=True, warn=False) if parts else {}
    except (PyMongoError, ValueError, TypeError, OSError) as error:
        problem = _masked(str(error), url)
        raise ConfigError(f"MongoDB URL: {problem}") from None
    taken = {option.lower() for option in given}
    options = {n: value for n, value in _DEFAULTS.items() if n.lower() not in taken}
    return Address(f"{head}?{'&'.join(parts)}" if parts else head, options, name)


def _masked(text: str, url: Url) -> str:
    """Return the driver's message without the secret options that it quotes, whole or in parts."""
    for option, value in url.query:
        if is_secret(option, value):
            for part in {value, *re.split("[,;:]", value)}:
                text = text.replace(part, MASK) if len(part) > 3 else text
    return text
