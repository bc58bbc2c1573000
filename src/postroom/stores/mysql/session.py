"""A connection to the server, and the transactions on it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Literal, cast

import asyncmy

from postroom.errors import StoreUnknownError
from postroom.stores.mysql.errors import is_lost, translate
from postroom.stores.mysql.tls import Tls

Flavour = Literal["mysql", "mariadb"]

GRACE_SECONDS = 5.0
"""How much longer than the server the client waits for a statement to end."""
IDLE_SECONDS = 30
"""The server closes a session that is idle this long, including an open transaction: a relay that
is frozen in the middle of a settle must not hold its lanes.
"""
SET_NAMES = "SET NAMES utf8mb4"
_CLOSE_SECONDS = 1.0
_CANNOT_LOAD = 2059  # an authentication plugin
_TOGETHER_BYTES = 500_000  # longer statements are sent alone: a server may accept 1 MB at a time


_PLACEHOLDER = re.compile(r"%\((\w+)\)s")
_BETWEEN, _NULL = "\x01", "\x02"


class Listed(tuple[Any, ...]):
    """Arguments of a function, without parentheses: all integers, or all printable texts or None.

    The driver renders a plain tuple with parentheses, as IN needs it.
    """

    __slots__ = ()


class ClearText:
    """Replaces the authentication plugins that send the password in clear text: it refuses.

    Any server may request them. Without TLS, the password would be readable on the network.
    """

    def __init__(self, connection: object) -> None: ...

    def authenticate(self, packet: object) -> None:  # noqa: ARG002 - the shape that both drivers ask for
        raise asyncmy.errors.OperationalError(
            _CANNOT_LOAD,
            "the server asks for the password in clear text, but the connection is not encrypted; "
            "nothing was sent. Add ssl_mode=verify_identity to the URL",
        )


@dataclass(frozen=True, slots=True)
class Target:
    """The server's address, and the time limits."""

    host: str
    port: int
    user: str | None
    password: str | None = field(repr=False)
    database: str
    socket: str | None = None
    tls: Tls | None = None
    connect_seconds: float = 10.0
    statement_seconds: float = 30.0
    lock_seconds: int = 5

    @property
    def refused_plugins(self) -> Mapping[str, type[ClearText]] | None:
        """The authentication plugins that no driver may use: others can read an open line."""
        return None if self.tls or self.socket else _REFUSED_PLUGINS

    async def connect(self, *, names: bool = True, autocommit: bool = True) -> asyncmy.Connection:
        """Open a connection; the driver's errors are translated to those of the port.

        The driver asks for utf8mb4 only in the handshake, which a server may ignore
        (skip-character-set-client-handshake) or undo (init_connect): it would replace characters
        that its own character set lacks with question marks. The first statement therefore asks
        again, unless `names` is False.
        """
        try:
            async with asyncio.timeout(self.connect_seconds):
                cancels = _cancels()
                connection = await asyncmy.connect(
                    host=self.host,
                    port=self.port,
                    unix_socket=self.socket,
                    user=self.user,
                    # Bytes: the driver would encode text as Latin-1.
                    password=(self.password or "").encode(),
                    database=self.database,
                    charset="utf8mb4",
                    autocommit=autocommit,
                    connect_timeout=self.connect_seconds,
                    ssl=self.tls.context() if self.tls is not None else None,
                    auth_plugin_map=self.refused_plugins,
                )
                if _cancels() > cancels:  # asyncio.wait_for of Python 3.11 may swallow a cancel
                    connection.close()
                    raise asyncio.CancelledError
                if names:
                    try:
                        await connection.cursor().execute(SET_NAMES)
                    except BaseException:
                        connection.close()
                        raise
                return connection
        except (asyncmy.errors.MySQLError, OSError, EOFError) as error:
            raise translate(error, self.database) from error


_REFUSED_PLUGINS = dict.fromkeys(("mysql_clear_password", "dialog"), ClearText)


def _cancels() -> int:
    """Return how often this task was asked to end."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def flavour_of(version: str) -> Flavour:
    """Distinguish MySQL and MariaDB by the server's version."""
    return "mariadb" if "mariadb" in version.lower() else "mysql"


class Session:
    """An open connection with its named statements.

    READ COMMITTED, autocommit outside of `change`, UTC. Statements of a change are sent together
    where their result is not awaited: its BEGIN with the first, its COMMIT with the last.
    """

    def __init__(
        self, connection: asyncmy.Connection, sql: Mapping[str, str], target: Target
    ) -> None:
        self.sql = sql
        self._connection = connection
        self._cursor = connection.cursor()
        self._target = target
        self._limit = target.statement_seconds + GRACE_SECONDS
        self._ahead: list[str] = []
        self._ahead_bytes = 0
        self._counted: set[str] = set()
        self._fetched: set[str] = set()
        self.changed = 0
        """The number of rows changed by the counted statements of the last change."""
        self.fetched: list[Any] = []
        """The rows returned by the fetched statements of the last change."""
        self.broken = False
        self.idle_since = 0.0

    @classmethod
    async def open(cls, target: Target, sql: Mapping[str, str]) -> Session:
        connection = await target.connect()
        self = cls(connection, sql, target)
        try:
            await self.execute(self._settings())
        except BaseException:
            await self.close()
            raise
        return self

    def _settings(self) -> str:
        target = self._target
        values = {
            "time_zone": "'+00:00'",
            "sql_mode": "'STRICT_ALL_TABLES,ONLY_FULL_GROUP_BY,NO_ENGINE_SUBSTITUTION'",
            "innodb_lock_wait_timeout": target.lock_seconds,
            "lock_wait_timeout": target.lock_seconds,
            "wait_timeout": IDLE_SECONDS,
            "net_write_timeout": IDLE_SECONDS,
        }
        if self.flavour == "mariadb":
            values["max_statement_time"] = target.statement_seconds
            values["in_predicate_conversion_threshold"] = 0  # long lists stay ranges of the index
        else:
            values["max_execution_time"] = round(target.statement_seconds * 1000)
            values["range_optimizer_max_mem_size"] = 0  # the same
        listed = ", ".join(f"SESSION {name} = {value}" for name, value in values.items())
        return f"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET {listed}"

    @property
    def database(self) -> str:
        return self._target.database

    @property
    def version(self) -> str:
        return str(self._connection.get_server_info())

    @property
    def flavour(self) -> Flavour:
        return flavour_of(self.version)

    # -- statements ---------------------------------------------------------------------------
    async def run(self, name: str, /, **values: Any) -> int:
        """Execute the named statement now; returns the number of changed rows."""
        await self.execute(self.say(name, **values))
        return cast("int", self._cursor.rowcount)

    async def rows(self, name: str, /, **values: Any) -> Sequence[Any]:
        """Execute a statement now and fetch all rows."""
        return await self.query(self.say(name, **values))

    async def query(self, text: str) -> Sequence[Any]:
        """Execute SQL text and fetch all rows."""
        await self.execute(text)
        return await self._cursor.fetchall()

    def later(
        self, name: str, /, *, counted: bool = False, fetched: bool = False, **values: Any
    ) -> None:
        """Execute a statement of the change before its commit, without waiting for its result.

        After the commit `changed` is the number of rows changed by counted statements, and
        `fetched` holds the rows of fetched ones.
        """
        text = self.say(name, **values)
        if counted:
            self._counted.add(text)
        if fetched:
            self._fetched.add(text)
        self._ahead.append(text)
        self._ahead_bytes += len(text)

    def say(self, name: str, /, *, parts: Mapping[str, str] | None = None, **values: Any) -> str:
        """Return a statement as text, its parts filled in and its values quoted by the driver."""
        text = self.sql[name]
        for part, words in (parts or {}).items():
            text = text.replace(f"{{{part}}}", words)
        if any(type(value) is Listed for value in values.values()):
            text = _PLACEHOLDER.sub(lambda found: self._listed(found, values), text)
        return str(self._cursor.mogrify(text, values or None))

    def _listed(self, found: re.Match[str], values: Mapping[str, Any]) -> str:
        """Return the text for a placeholder of a list; others stay."""
        value = values[found[1]]
        if type(value) is not Listed:
            return found[0]
        if all(type(each) is int for each in value):
            return ",".join(map(str, value))
        texts = [_NULL if each is None else each for each in value]
        quoted = str(self._cursor.mogrify("%s", (_BETWEEN.join(texts),)))  # once, not one by one
        listed = quoted.replace(_BETWEEN, "','").replace(f"'{_NULL}'", "NULL")
        return listed.replace("%", "%%")

    async def execute(self, text: str) -> None:
        """Send the pending statements and this one; the result is that of the last."""
        parts = [*self._ahead, text]
        self._ahead, self._ahead_bytes = [], 0
        try:
            await self._send(parts)
        except (asyncmy.errors.MySQLError, OSError, EOFError) as error:
            self.broken = self.broken or is_lost(error)
            raise translate(error, self._target.database) from error
        except BaseException:
            self.broken = True
            raise

    async def _send(self, parts: Sequence[str]) -> None:
        """Execute statements in one round trip; counted ones have one result each."""
        async with asyncio.timeout(self._limit):
            await self._cursor.execute(";".join(parts))
            for text in chain(parts, repeat("")):
                if text in self._counted:
                    self.changed += cast("int", self._cursor.rowcount)
                if text in self._fetched:
                    self.fetched += await self._cursor.fetchall()
                if not await self._cursor.nextset():
                    break

    # -- transactions -------------------------------------------------------------------------
    @asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        """Commit at the end, roll back on any error.

        An error before the commit leaves nothing changed. If the connection is lost during the
        COMMIT, the outcome is unknown: StoreUnknownError.
        """
        self._ahead, self._ahead_bytes = ["BEGIN"], 0
        self._counted, self._fetched, self.changed, self.fetched = set(), set(), 0, []
        try:
            yield
            if self._ahead == ["BEGIN"]:  # nothing was sent
                self._ahead = []
                return
            if self._ahead_bytes > _TOGETHER_BYTES:
                ahead, self._ahead = self._ahead, []
                for text in ahead:
                    await self.execute(text)
        except BaseException:
            await self._roll_back()
            raise
        await self._commit()

    async def _commit(self) -> None:
        parts = [*self._ahead, "COMMIT"]
        self._ahead = []
        try:
            await self._send(parts)
        except (asyncmy.errors.MySQLError, OSError, EOFError) as error:
            if is_lost(error):
                self.broken = True
                raise StoreUnknownError(
                    f"the connection was lost during a commit: {error}; the outcome is unknown"
                ) from error
            await self._roll_back()
            raise translate(error, self._target.database) from error
        except BaseException:
            self.broken = True
            raise

    async def _roll_back(self) -> None:
        """End the transaction. A lock wait timeout has undone one statement only."""
        self._ahead = []
        if self.broken:
            return
        self.broken = True  # unless the rollback is answered
        with suppress(asyncmy.errors.MySQLError, OSError, EOFError):
            async with asyncio.timeout(self._limit):
                await self._cursor.execute("ROLLBACK")
            self.broken = False

    async def close(self) -> None:
        """End the session; never raises."""
        self.broken = True
        await end(self._connection)


async def end(connection: asyncmy.Connection) -> None:
    """Close a connection, gracefully if the server answers."""
    with suppress(asyncmy.errors.MySQLError, OSError, EOFError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await connection.ensure_closed()
    connection.close()
