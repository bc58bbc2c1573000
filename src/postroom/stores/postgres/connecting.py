"""Opening connections: limits that the server keeps, and a second try where a pooler forbids them."""

from __future__ import annotations

from typing import Any, Self

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.types.numeric import Int8BinaryLoader

from postroom.stores.postgres.options import Options

_FORBIDDEN = "unsupported startup parameter"


class _Shared:
    """What both kinds of connections share: whether the server takes our settings, once known."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.forbidden = False
        self.error: psycopg.Error | None = None
        """Why the last attempt to connect failed; None if it did not."""

    def parameters(self, **more: Any) -> dict[str, Any]:
        settings = {} if self.forbidden else {"options": self.options.settings()}
        # Prepared statements do not work behind pgbouncer in transaction mode; the statements that
        # count have their plans kept by functions of the database.
        fixed = {"autocommit": True, "prepare_threshold": None}
        return {**self.options.parameters(**more), **settings, **fixed}

    def refused(self, error: psycopg.Error) -> bool:
        """Note an error; True if it makes sense to try without our settings."""
        self.error = error
        if self.forbidden or _FORBIDDEN not in str(error):
            return False
        self.forbidden = True
        return True


class RelayConnection(AsyncConnection[tuple[Any, ...]]):
    """A connection of the relay's own. Instants arrive as microseconds."""

    @classmethod
    async def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, connector: Connector, **more: Any
    ) -> Self:
        return await connector.open(cls, **more)


class Connector(_Shared):
    """Opens connections for one store."""

    async def connect(self, **more: Any) -> AsyncConnection[tuple[Any, ...]]:
        """Open a plain connection; its errors are psycopg's."""
        return await self._connect(AsyncConnection[tuple[Any, ...]], **more)

    async def open(self, kind: type[Any], **more: Any) -> Any:
        """Open a connection of the relay's own."""
        connection = await self._connect(kind, **more)
        # On the wire an instant is a whole number of microseconds since 2000, and the statements
        # add what lies between 1970 and 2000: exact, and no datetime is made for each row.
        connection.adapters.register_loader("timestamptz", Int8BinaryLoader)
        return connection

    async def _connect(self, kind: type[Any], **more: Any) -> Any:
        connect = super(RelayConnection, kind).connect if issubclass(kind, RelayConnection) else kind.connect
        while True:
            try:
                connection = await connect(**self.parameters(**more))
            except psycopg.Error as error:
                if not self.refused(error):
                    raise
            else:
                self.error = None
                return connection


class SyncConnector(_Shared):
    """Opens connections for threads."""

    def connect(self, **more: Any) -> Connection[tuple[Any, ...]]:
        """Open a plain connection; its errors are psycopg's."""
        while True:
            try:
                return Connection.connect(**self.parameters(**more))
            except psycopg.Error as error:
                if not self.refused(error):
                    raise
