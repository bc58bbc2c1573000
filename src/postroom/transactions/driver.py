"""What an adapter's driver can do: run one statement on the caller's object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from postroom.transactions.queries import Style

Values = Sequence[Any]


class Driver(ABC):
    """The caller's object. What its calls return is a result, or something to await."""

    asks = False
    """Whether only the server knows, by `ask`, if a transaction is open."""

    flushes = False
    """Whether `flush` is to be called; most drivers have nothing to flush."""

    stamp: Any = None
    """What names the open transaction, once it is known; None before, or where nothing does."""

    def __init__(self, target: Any) -> None:
        self.target = target  # the object that holds the transaction, whatever proxy was given

    @property
    @abstractmethod
    def dialect(self) -> str:
        """The folder that its statements are in."""

    @property
    @abstractmethod
    def style(self) -> Style:
        """How it marks parameters."""

    @abstractmethod
    def is_open(self) -> bool:
        """Say whether the driver knows of an open transaction at this moment."""

    def ask(self) -> Any:
        """Ask the server whether a transaction is open."""
        return self.is_open()

    @abstractmethod
    def check(self) -> None:
        """Refuse what the driver knows, without asking the server, to commit by itself."""

    @abstractmethod
    def guard(self) -> Any:
        """Refuse a statement that would commit by itself (W1, W2); every statement asks first."""

    def flush(self) -> Any:
        """Do what must come before an event gets its number (W3)."""
        raise NotImplementedError

    @abstractmethod
    def change(self, sql: str, values: Values = ()) -> Any:
        """Run a statement; the number of rows it changed."""

    @abstractmethod
    def fetch(self, sql: str, values: Values = ()) -> Any:
        """Run a statement to its end; its rows."""


class SqliteDriver(Driver):
    """A driver of SQLite has no round trips to save: it runs a statement once for each row."""

    @abstractmethod
    def change_many(self, sql: str, values: Sequence[Values]) -> Any:
        """Run a statement for each of the values, in order; the rows changed in all."""


class MysqlDriver(Driver):
    """A driver of MySQL knows its connection to the server."""

    @property
    @abstractmethod
    def session(self) -> Any:
        """The driver's own connection object, which lives as long as the session does."""
