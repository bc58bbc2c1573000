"""Opens connections with server-side time limits, or without where a pooler forbids them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.types.numeric import Int8BinaryLoader

from postroom.stores.postgres.settings import PostgresSettings

_FORBIDDEN = "unsupported startup parameter"


class Connector:
    """Opens all connections of one store. Errors are psycopg's."""

    def __init__(self, settings: PostgresSettings) -> None:
        self.settings = settings
        self.error: psycopg.Error | None = None
        """The error of the last attempt; None if it succeeded."""
        self._bare = False  # a pooler in between does not accept settings

    async def connect(self, seconds: float | None = None) -> AsyncConnection[tuple[Any, ...]]:
        """Open a plain connection in autocommit mode; `seconds` replaces its time limits."""
        while True:
            try:
                with self.noting():
                    return await AsyncConnection.connect(**self.parameters(seconds=seconds))
            except psycopg.Error as error:
                if not self._can_do_without(error):
                    raise

    def connect_sync(self) -> Connection[tuple[Any, ...]]:
        """The same for a thread."""
        while True:
            try:
                with self.noting():
                    return Connection.connect(**self.parameters())
            except psycopg.Error as error:
                if not self._can_do_without(error):
                    raise

    def parameters(self, *, limited: bool = True, seconds: float | None = None) -> dict[str, Any]:
        """Return the arguments of psycopg's `connect`."""
        given = self.settings.parameters()
        if limited and not self._bare:
            given["options"] = self.settings.server_limits(seconds)
        elif self.settings.server_options is not None:
            given["options"] = self.settings.server_options
        # Prepared statements do not work behind pgbouncer in transaction mode; functions of the
        # database keep the plans of the most frequent statements.
        return {**given, "autocommit": True, "prepare_threshold": None}

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Remember how an attempt ended."""
        try:
            yield
        except psycopg.Error as error:
            self.error = error
            raise
        self.error = None

    def _can_do_without(self, error: psycopg.Error) -> bool:
        """Return whether to try again without server-side settings."""
        if self._bare or _FORBIDDEN not in str(error):
            return False
        self._bare = True
        return True


class RelayConnection(AsyncConnection[tuple[Any, ...]]):
    """A connection in the relay's pool, which returns timestamps as microseconds."""

    @classmethod
    async def connect(  # type: ignore[override]
        cls, _conninfo: str = "", *, connector: Connector, **more: Any
    ) -> Self:
        with connector.noting():
            connection = await super().connect(**{**connector.parameters(), **more})
        # On the wire a timestamp is a whole number of microseconds since 2000, and the statements
        # add the time between 1970 and 2000: exact, and without a datetime for each row.
        connection.adapters.register_loader("timestamptz", Int8BinaryLoader)
        return connection
