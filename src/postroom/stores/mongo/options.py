"""The URL of a MongoDB: what is the driver's and what is ours."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pymongo.errors import PyMongoError
from pymongo.uri_parser import split_options

from postroom.errors import ConfigError
from postroom.model.url import MASK, Url, is_secret

OWN = ("prefix", "transactions", "embedded")

_DEFAULTS = {
    # A relay that hears nothing must give up well before its lease does, and try again.
    "serverSelectionTimeoutMS": 5_000,
    "connectTimeoutMS": 5_000,
    "socketTimeoutMS": 10_000,
    "appName": "postroom",
}


class MongoOptions(NamedTuple):
    """Where a store is: the driver's URL, its options for what the URL leaves open, a database."""

    target: str
    options: dict[str, Any]
    database: str


def names(text: str) -> tuple[str, ...]:
    """Names of collections, with commas between them."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise ValueError("collection names, separated by commas")
    return found


def read_options(text: str | Url, database: str | None = None) -> MongoOptions:
    """Take a URL apart. Raises ConfigError for an unknown option, and if no database is named."""
    url = Url.parse(text)
    if url.scheme != "mongodb":
        raise ConfigError(f"not a MongoDB URL: {url}; write mongodb://host/database")
    name = database or url.database
    if not name:
        raise ConfigError(f"{url} names no database; write mongodb://host/database")
    head, _, query = url.reveal().partition("?")
    parts = [part for part in query.split("&") if part and part.partition("=")[0] not in OWN]
    try:
        given = split_options("&".join(parts), validate=True, warn=False) if parts else {}
    except (PyMongoError, ValueError, TypeError, OSError) as error:
        problem = _masked(str(error), url)
        raise ConfigError(f"MongoDB URL: {problem}") from None
    taken = {option.lower() for option in given}
    options = {n: value for n, value in _DEFAULTS.items() if n.lower() not in taken}
    return MongoOptions(f"{head}?{'&'.join(parts)}" if parts else head, options, name)


def _masked(text: str, url: Url) -> str:
    """Return the driver's message without the secret options that it quotes, whole or in parts."""
    for option, value in url.query:
        if is_secret(option, value):
            for part in {value, *re.split("[,;:]", value)}:
                text = text.replace(part, MASK) if len(part) > 3 else text
    return text
