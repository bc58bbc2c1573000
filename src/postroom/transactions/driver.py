"""The driver of an adapter: runs one statement on the caller's object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from postroom.transactions.queries import Style

Values = Sequence[Any]


class Driver(ABC):
    """The caller's object. Its calls return a result, or an awaitable."""

    asks = False
    """Whether only the server knows, by `ask`, if a transaction is open."""

    flushes = False
    """Whether `flush` must be called; most drivers have nothing to flush."""

    stamp: Any = None
    """The identity of the open transaction, once known; None before, or if there is none."""

    last_stamp: Any = None
    """The identity of the transaction of the last `accept`."""

    def __init__(self, target: Any) -> None:
        self.target = target  # the object that holds the transaction, even if a proxy was given

    @property
    @abstractmethod
    def dialect(self) -> str:
        """The folder of its statements."""

    @property
    @abstractmethod
    def style(self) -> Style:
        """Its parameter style."""

    @abstractmethod
    def is_open(self) -> bool:
        """Return whether the driver knows of an open transaction at this moment."""

    def ask(self) -> Any:
        """Ask the server whether a transaction is open."""
        return self.is_open()

    @abstractmethod
    def check(self) -> None:
        """Refuse a statement that would autocommit, as far as the driver knows without a query."""

    @abstractmethod
    def guard(self) -> Any:
        """Refuse a statement that would autocommit (W1, W2); called before every statement."""

    def flush(self) -> Any:
        """Flush pending changes before an event gets its number (W3)."""
        raise NotImplementedError

    @abstractmethod
    def change(self, sql: str, values: Values = ()) -> Any:
        """Run a statement; returns the number of changed rows."""

    @abstractmethod
    def fetch(self, sql: str, values: Values = ()) -> Any:
        """Run a statement to its end; returns its rows."""


class SqliteDriver(Driver):
    """A driver of SQLite has no round trips to save: it runs a statement once per row."""

    @abstractmethod
    def change_many(self, sql: str, values: Sequence[Values]) -> Any:
        """Run a statement for each of the values, in order; returns the total of changed rows."""


class MysqlDriver(Driver):
    """A driver of MySQL knows its connection to the server."""

    @property
    @abstractmethod
    def session(self) -> Any:
        """The driver's own connection object, which lives as long as the session."""
