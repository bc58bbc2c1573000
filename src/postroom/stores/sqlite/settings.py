"""The settings of an SQLite store, from its URL and from Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from postroom.errors import ConfigError
from postroom.model.option_reader import check_numbers, check_words, read_options, readers
from postroom.model.url import Url
from postroom.options import Synchronous
from postroom.transactions.queries import DEFAULT_PREFIX, check_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSettings:
    """Where the file is, and how it is used. Times are seconds or timedeltas.

    prefix          the prefix of the tables' names
    busy_seconds    how long a call waits for another writer before StoreRetryableError
    synchronous     `normal`: a power failure may undo the last settles, whose events are then sent
                    again; `full` or `extra`: it may not
    """

    prefix: str = DEFAULT_PREFIX
    busy_seconds: float = 5.0
    synchronous: Synchronous = "normal"

    def __post_init__(self) -> None:
        check_prefix(self.prefix)
        check_numbers(self, may_be_zero=("busy_seconds",))
        check_words(self)


_READERS = readers(SqliteSettings)


def read_settings(where: str | Url | Path, given: Mapping[str, Any]) -> tuple[Path, SqliteSettings]:
    """Return the file that a URL or a Path names, and the settings from both places."""
    url = Url.parse("sqlite:///file" if isinstance(where, Path) else where)
    if url.scheme != "sqlite":
        raise ConfigError(f"not an SQLite URL: {url}; write sqlite:///app.db")
    path = where if isinstance(where, Path) else Path(url.file())
    return path.absolute(), SqliteSettings(**read_options(url, _READERS, given))
