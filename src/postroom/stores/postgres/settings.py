"""The settings of a PostgreSQL store, from a URL or libpq's keywords."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from postroom.errors import ConfigError
from postroom.model.option_reader import (
    Readers,
    check_numbers,
    read_options,
    readers,
    refuse_unknown,
)
from postroom.model.url import Url
from postroom.transactions.queries import DEFAULT_PREFIX, qualify

SCHEMES = ("postgresql", "postgres")
_CHANNEL_BYTES = 63
_KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSettings:
    """Settings of a store and a notifier. Times are seconds or timedeltas; 0 means no limit.

    conninfo            libpq's: a URL or `host=… dbname=…`
    prefix, schema      of the tables; without a schema the role's search_path finds them
    application_name    shown in pg_stat_activity
    connect_seconds     time limit for opening a connection, and for waiting for a free one
    statement_seconds   time limit of a statement, on the server and in the client
    lock_seconds        how long a statement waits for a lock
    pool_size           maximum number of connections, for relays and for handlers each
    notify              listen for NOTIFY
    """

    conninfo: str = field(repr=False)
    prefix: str = DEFAULT_PREFIX
    schema: str | None = None
    application_name: str = "postroom"
    connect_seconds: float = 10.0
    statement_seconds: float = 30.0
    lock_seconds: float = 5.0
    pool_size: int = 10
    notify: bool = True

    def __post_init__(self) -> None:
        qualify(self.prefix, self.schema)
        check_numbers(self, may_be_zero=("connect_seconds", "statement_seconds", "lock_seconds"))
        if self.pool_size < 2:
            raise ConfigError(f"pool_size must be 2 or more, not {self.pool_size!r}")
        try:
            conninfo_to_dict(self.conninfo)
        except psycopg.Error:
            problem = ConfigError(
                "not a libpq connection string (not shown, it may contain secrets)"
            )
        else:
            return
        raise problem

    @property
    def tables(self) -> str:
        """The prefix of the tables' names, including the schema, as SQL."""
        return self.prefix if self.schema is None else f'"{self.schema}".{self.prefix}'

    @property
    def channel(self) -> str:
        """The channel of NOTIFY: one for each set of tables, as written in the options."""
        place = "" if self.schema is None else f"{self.schema}."
        name = f"{place}{self.prefix}kick"
        if len(name) <= _CHANNEL_BYTES:
            return name
        # libpq would truncate it, and names with the same beginning, or end, would share a channel.
        return f"postroom_kick_{sha256(name.encode()).hexdigest()[:40]}"

    def parameters(self) -> dict[str, Any]:
        """Return the connection parameters; those of the URL override postroom's defaults."""
        given = conninfo_to_dict(self.conninfo)
        ours: dict[str, Any] = {
            "application_name": self.application_name,
            "connect_timeout": max(2, round(self.connect_seconds)) if self.connect_seconds else 0,
            "keepalives": 1,
            **_KEEPALIVE,
            "tcp_user_timeout": round(self.statement_seconds * 1000),
        }
        theirs = {k: v for k, v in given.items() if k != "options"}
        # Regardless of PGCLIENTENCODING, the role's settings or the URL: UTF-8 can represent every
        # text.
        return {**ours, **theirs, "client_encoding": "UTF8"}

    def server_limits(self, seconds: float | None = None) -> str:
        """Return the server-side limits, as libpq's `options`.

        They belong to the connection from its start. Behind pgbouncer they may be refused or
        ignored, but they never leak to other clients, as a SET would. `seconds` replaces the limits
        of statements and locks.
        """
        statement = self.statement_seconds if seconds is None else seconds
        lock = self.lock_seconds if seconds is None else seconds
        ours = {
            "statement_timeout": round(statement * 1000),
            "lock_timeout": round(lock * 1000),
            "idle_in_transaction_session_timeout": round(statement * 2000),
            "default_transaction_isolation": "read\\ committed",
        }
        limits = [f"-c {name}={value}" for name, value in ours.items()]
        return " ".join([*limits, self.server_options or ""])

    @property
    def server_options(self) -> str | None:
        """The value of libpq's `options` in the connection string itself."""
        given = conninfo_to_dict(self.conninfo).get("options")
        return None if given is None else str(given)

    @property
    def shown(self) -> str:
        """The server's URL, without secrets."""
        given = conninfo_to_dict(self.conninfo)
        user = f"{given['user']}@" if given.get("user") else ""
        port = f":{given['port']}" if given.get("port") else ""
        place = f"?schema={self.schema}" if self.schema else ""
        return (
            f"postgresql://{user}{given.get('host') or ''}{port}/{given.get('dbname') or ''}{place}"
        )

    @classmethod
    def read(cls, where: str | Url, given: Mapping[str, Any]) -> PostgresSettings:
        """Read a URL; other parameters are passed to libpq unchanged (sslmode, target_session_attrs
        …).
        """
        url = Url.parse(where)
        if url.scheme not in SCHEMES:
            raise ConfigError(f"not a PostgreSQL URL: {url}; write postgresql://host/database")
        refuse_unknown("postgresql option", given, _OURS)
        known: Readers = {**dict.fromkeys(_libpq_options(), str), **_OURS}
        options = read_options(url, known, given)
        ours = {name: options.pop(name) for name in _OURS if name in options}
        return cls(conninfo=_conninfo(url, options), **ours)


_OURS = readers(PostgresSettings, skip=("conninfo",))


def _libpq_options() -> list[str]:
    return [option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()]


def _conninfo(url: Url, options: Mapping[str, Any]) -> str:
    parts: dict[str, Any] = dict(options)
    if url.hosts:
        parts["host"] = ",".join(host.name for host in url.hosts)
        if any(host.port for host in url.hosts):
            parts["port"] = ",".join(str(host.port or 5432) for host in url.hosts)
    given = {"user": url.user, "password": url.password, "dbname": url.database}
    parts |= {name: value for name, value in given.items() if value}
    try:
        return make_conninfo("", **parts)
    except psycopg.Error as error:
        raise ConfigError(f"PostgreSQL URL: {str(error).strip()}") from None
