"""Inbox: `accept` records a message in the handler's transaction.

The inbox row and the effects commit together or not at all, so a redelivered message finds the row
and is skipped. Acknowledge the message to its broker after the commit.
"""

from __future__ import annotations

import copy
from typing import Protocol, Self

from postroom.connection import Connection, SyncConnection
from postroom.errors import EventError
from postroom.event import MAX_NAME_BYTES, check_field
from postroom.model.durations import Seconds, to_seconds
from postroom.model.text import check_setting
from postroom.store import Tables, refuse_others
from postroom.transaction import Acceptance
from postroom.transactions import resolve, resolve_sync
from postroom.transactions.queries import DEFAULT_PREFIX, qualify


class Message(Protocol):
    """A message for the inbox: a Record, an Event, or any object with these attributes."""

    @property
    def id(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def correlation_id(self) -> str | None: ...


class _Reader:
    def __init__(
        self, consumer: str, *, prefix: str | None = None, schema: str | None = None
    ) -> None:
        check_setting("an inbox's consumer", consumer, MAX_NAME_BYTES)
        self.consumer = consumer
        self._names = (prefix, schema)
        self.prefix = qualify(DEFAULT_PREFIX if prefix is None else prefix, schema)

    def within(self, tables: Tables) -> Self:
        """Return this inbox for a store's tables: `Inbox("payments").within(store.tables)`.

        Raises ConfigError if an explicit prefix or schema differs from the store's.
        """
        refuse_others("inbox", self._names, tables)
        twin = copy.copy(self)
        twin.prefix = tables.qualified
        return twin

    def _acceptance(self, message: Message) -> Acceptance:
        try:
            found = Acceptance(self.consumer, message.id, message.type, message.correlation_id)
        except AttributeError as error:
            raise TypeError(
                "an inbox takes a message with id, type and correlation_id; "
                f"{type(message).__qualname__} does not have them: {error}"
            ) from error
        check_field("id", found.id, MAX_NAME_BYTES)
        _check_note("type", found.type)
        if found.correlation_id is not None:
            _check_note("correlation_id", found.correlation_id)
        return found


class Inbox(_Reader):
    """The inbox of one consumer. Consumers with different names each handle every message."""

    async def accept(self, conn: Connection, message: Message) -> bool:
        """Record the message in the transaction that is open on `conn`; never commits.

        True: the message is new, or was received but never handled, and the caller must do the
        work in this transaction. False: the work is already done. Raises like `Outbox.add`.
        """
        acceptance = self._acceptance(message)
        tx = resolve(conn, self.prefix)
        return await tx.accept(acceptance)

    async def forget(
        self, conn: Connection, *, older_than_seconds: Seconds, limit: int = 1_000
    ) -> int:
        """Delete inbox rows older than that, oldest first; returns how many. Never commits.

        A message redelivered afterwards counts as new. Relays and consumers prune the rows of
        their handlers automatically; applications that call `accept` call this regularly.
        """
        tx = resolve(conn, self.prefix)
        found = await tx.done_before(self.consumer, to_seconds(older_than_seconds), limit, 0)
        return await tx.forget(self.consumer, found) if found else 0


class SyncInbox(_Reader):
    """`Inbox` for callers without an event loop; the same guarantees."""

    def accept(self, conn: SyncConnection, message: Message) -> bool:
        """Record the message in the transaction that is open on `conn`; see `Inbox.accept`."""
        acceptance = self._acceptance(message)
        tx = resolve_sync(conn, self.prefix)
        return tx.accept(acceptance)

    def forget(
        self, conn: SyncConnection, *, older_than_seconds: Seconds, limit: int = 1_000
    ) -> int:
        """Delete inbox rows older than that; see `Inbox.forget`."""
        tx = resolve_sync(conn, self.prefix)
        found = tx.done_before(self.consumer, to_seconds(older_than_seconds), limit, 0)
        return tx.forget(self.consumer, found) if found else 0


def _check_note(name: str, value: object) -> None:
    """Raise if a database would truncate or reject the value; other systems may have written it."""
    if not isinstance(value, str):
        raise EventError(name, f"must be text, not {type(value).__name__}")
    size = len(value.encode(errors="surrogatepass"))
    if size > MAX_NAME_BYTES:
        raise EventError(
            name, f"has {size} bytes in UTF-8; the limit is {MAX_NAME_BYTES}", limit=MAX_NAME_BYTES
        )
    if "\x00" in value:
        raise EventError(name, "contains a NUL character; remove it")
