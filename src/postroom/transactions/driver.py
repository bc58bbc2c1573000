"""What an adapter's driver can do: run one statement on the caller's object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from postroom.transactions.queries import Style

Values = Sequence[Any]


class Driver(Protocol):
    """The caller's object. What its calls return is a result, or something to await."""

    @property
    def target(self) -> Any:
        """The object that holds the transaction, whatever proxy the caller gave."""

    @property
    def dialect(self) -> str:
        """The folder that its statements are in."""

    @property
    def style(self) -> Style:
        """How it marks parameters."""

    asks: bool
    """Whether only the server knows, by `ask`, if a transaction is open."""

    stamp: Any
    """What names the open transaction, once it is known; None before, or where nothing does."""

    def is_open(self) -> bool:
        """Say whether the driver knows of an open transaction at this moment."""

    def ask(self) -> Any:
        """Ask the server whether a transaction is open."""

    def check(self) -> None:
        """Refuse what is known, without asking, to commit by itself."""

    def guard(self) -> Any:
        """Refuse a statement that would commit by itself (W1, W2)."""

    def flush(self) -> Any:
        """Do what must come before an event gets its number (W3)."""

    def change(self, sql: str, values: Values = ()) -> Any:
        """Run a statement; the number of rows it changed."""

    def fetch(self, sql: str, values: Values = ()) -> Any:
        """Run a statement to its end; its rows."""


class SqliteDriver(Driver, Protocol):
    """A driver of SQLite has no round trips to save: it runs a statement once for each row."""

    def change_many(self, sql: str, values: Sequence[Values]) -> Any:
        """Run a statement for each of the values, in order; the rows changed in all."""


class MysqlDriver(Driver, Protocol):
    """A driver of MySQL knows its connection to the server."""

    @property
    def session(self) -> Any:
        """The driver's own connection object, which lives as long as the session does."""
