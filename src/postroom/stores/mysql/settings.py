"""The settings of a MySQL store, from its URL and from Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from postroom.errors import ConfigError
from postroom.model.option_reader import check_numbers, check_words, read_options, readers
from postroom.model.url import Url
from postroom.options import SslMode
from postroom.stores.mysql.session import Target
from postroom.stores.mysql.tls import Tls
from postroom.transactions.queries import DEFAULT_PREFIX, check_prefix

_SCHEMES = ("mysql", "mariadb")


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlSettings:
    """How the server is reached, and how long to wait for it. Times are seconds or timedeltas.

    prefix             the prefix of the tables' names
    pool_size          maximum number of connections for relays
    connect_seconds    time limit for connecting
    statement_seconds  time limit of a statement, enforced by the server
    lock_seconds       how long a statement waits for another transaction's lock before
                       StoreRetryableError; whole seconds
    socket             a Unix socket in place of the host
    ssl_mode           `required`: encrypted; `verify_ca`: and the server's certificate is checked;
                       `verify_identity`: and its name. Default: `verify_identity` if one of the
                       files below is given, else the connection is not encrypted
    ssl_ca             a file of trusted certificates, instead of the system's
    ssl_cert, ssl_key  the relay's own certificate and key, for servers that ask for one
    """

    prefix: str = DEFAULT_PREFIX
    pool_size: int = 5
    connect_seconds: float = 10.0
    statement_seconds: float = 30.0
    lock_seconds: float = 5.0
    socket: str | None = None
    ssl_mode: SslMode | None = None
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None

    def __post_init__(self) -> None:
        check_prefix(self.prefix)
        check_numbers(self)
        check_words(self)
        if self.lock_seconds != int(self.lock_seconds):
            raise ConfigError(
                f"lock_seconds must be a whole number of seconds, not {self.lock_seconds!r}"
            )
        if self.ssl_key is not None and self.ssl_cert is None:
            raise ConfigError("ssl_key needs ssl_cert, its certificate")

    @property
    def tls(self) -> Tls | None:
        """The TLS settings of the connection; None: it is not encrypted."""
        if not (self.ssl_mode or self.ssl_ca or self.ssl_cert):
            return None
        return Tls(self.ssl_mode or "verify_identity", self.ssl_ca, self.ssl_cert, self.ssl_key)


_READERS = readers(MysqlSettings)


def read_settings(where: str | Url, given: Mapping[str, Any]) -> tuple[Target, MysqlSettings]:
    """Return the server that a URL names, and the settings from both places."""
    url = Url.parse(where)
    if url.scheme not in _SCHEMES or url.driver not in (None, "asyncmy"):
        raise ConfigError(f"not a MySQL URL: {url}; write mysql://user@host/database")
    if len(url.hosts) > 1:
        raise ConfigError(f"a MySQL URL takes one host: {url}; put a proxy in front of a cluster")
    settings = MysqlSettings(**read_options(url, _READERS, given))
    if not url.database:
        raise ConfigError("the database is missing: mysql://user:password@host/database")
    target = Target(
        url.host or "localhost", url.port or 3306, url.user, url.password, url.database,
        settings.socket, settings.tls,
        settings.connect_seconds, settings.statement_seconds, int(settings.lock_seconds),
    )  # fmt: skip
    return target, settings
