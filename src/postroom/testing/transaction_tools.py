"""How the contract of a write-side adapter drives a driver, and reads its results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from inspect import isawaitable
from typing import Any, NamedTuple

from postroom.event import Event
from postroom.inbox import Inbox, SyncInbox
from postroom.outbox import Outbox, SyncOutbox
from postroom.transaction import Acceptance
from postroom.transactions import resolve, resolve_sync


class Note(NamedTuple):
    """A message as a broker might deliver it."""

    id: str
    type: str = "note"
    correlation_id: str | None = None


class TransactionBench(ABC):
    """How the contract drives one driver. The business table is `orders (name TEXT)`.

    sync        use SyncOutbox and SyncInbox instead of Outbox and Inbox
    instant     a moment in the past, as a literal of this database
    after_end   what follows the end of a transaction: "transaction", "autocommit" or "refused"
                (see `misbehaviour`)
    aborts      a statement that fails aborts the whole transaction
    factory     opens transactions for handlers; None: begin, then commit or rollback
    """

    sync = False
    instant = "1"
    after_end = "transaction"
    aborts = False
    factory: Any = None

    # -- the driver ---------------------------------------------------------------------------
    @abstractmethod
    async def begin(self) -> Any:
        """Return the object that the caller would pass to `add`, with an open transaction."""

    @abstractmethod
    async def commit(self, tx: Any) -> None: ...

    @abstractmethod
    async def rollback(self, tx: Any) -> None: ...

    @abstractmethod
    async def execute(self, tx: Any, sql: str) -> None:
        """Run a business statement in the transaction."""

    @abstractmethod
    async def autocommitting(self) -> Any:
        """Return an object on which a statement would be autocommitted."""

    # -- what a handler should not do ---------------------------------------------------------
    async def fail(self, tx: Any) -> None:
        """Run a statement that fails."""
        await self.execute(tx, "INSERT INTO nowhere VALUES (1)")

    async def commit_inside(self, tx: Any) -> None:
        await self.commit(tx)

    async def roll_back_inside(self, tx: Any) -> None:
        await self.rollback(tx)

    async def close_inside(self, tx: Any) -> None:
        """Close the connection, or the session."""
        found = tx.close()
        if isawaitable(found):
            await found

    async def leave(self, tx: Any) -> None:
        """Commit, at the end of the block."""
        await self.commit(tx)

    async def undo(self, tx: Any) -> None:
        """Roll back, because of an error."""
        await self.rollback(tx)

    # -- another connection -------------------------------------------------------------------
    @abstractmethod
    async def rows(self, table: str = "postroom_outbox") -> list[Mapping[str, Any]]:
        """Return the committed rows of a table, events in `seq` order, as another connection sees
        them.
        """

    async def orders(self) -> list[str]:
        """Return the committed business rows, in the order of writing."""
        return [row["name"] for row in await self.rows("orders")]

    # -- postroom -----------------------------------------------------------------------------
    async def add_new(self, tx: Any, *events: Event, **options: Any) -> list[str]:
        """Add one event, or several at once, and ignore duplicates; returns the new ids."""
        found: Any
        if self.sync:
            sync = SyncOutbox(**options)
            if len(events) == 1:
                found = sync.add(tx, events[0], on_duplicate="ignore")
            else:
                found = sync.add_many(tx, events, on_duplicate="ignore")
        elif len(events) == 1:
            found = await Outbox(**options).add(tx, events[0], on_duplicate="ignore")
        else:
            found = await Outbox(**options).add_many(tx, events, on_duplicate="ignore")
        return [event.id for event in (found if isinstance(found, list) else [found]) if event]

    async def add(self, tx: Any, *events: Event, **options: Any) -> None:
        """Add one event, or several at once, with the outbox of the bench's kind."""
        if self.sync:
            outbox = SyncOutbox(**options)
            outbox.add(tx, events[0]) if len(events) == 1 else outbox.add_many(tx, events)
        elif len(events) == 1:
            await Outbox(**options).add(tx, events[0])
        else:
            await Outbox(**options).add_many(tx, events)

    async def cancel(self, tx: Any, event_id: str) -> bool:
        if self.sync:
            return SyncOutbox().cancel(tx, event_id)
        return await Outbox().cancel(tx, event_id)

    async def reschedule(self, tx: Any, event_id: str, at: datetime) -> bool:
        if self.sync:
            return SyncOutbox().reschedule(tx, event_id, at)
        return await Outbox().reschedule(tx, event_id, at)

    async def accept(self, tx: Any, message: Note, consumer: str = "payments") -> bool:
        if self.sync:
            return SyncInbox(consumer).accept(tx, message)
        return await Inbox(consumer).accept(tx, message)

    async def forget(self, tx: Any, *, older_than_seconds: float) -> int:
        """Delete the inbox rows of the consumer "payments"."""
        if self.sync:
            return SyncInbox("payments").forget(tx, older_than_seconds=older_than_seconds)
        return await Inbox("payments").forget(tx, older_than_seconds=older_than_seconds)

    async def count_done(self, tx: Any, *marks: Acceptance) -> int:
        if self.sync:
            return resolve_sync(tx).count_done(marks)
        return await resolve(tx).count_done(marks)

    async def order(self, tx: Any, name: str) -> None:
        await self.execute(tx, f"INSERT INTO orders (name) VALUES ('{name}')")


class SavepointBench(TransactionBench):
    """A bench whose driver has savepoints."""

    @abstractmethod
    async def savepoint(self, tx: Any) -> Any:
        """Open a savepoint; returns a function that ends it."""

    @abstractmethod
    async def release(self, tx: Any, savepoint: Any) -> None: ...

    @abstractmethod
    async def rollback_to(self, tx: Any, savepoint: Any) -> None: ...


def ids(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


def numbers(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    return [(row["id"], row["kseq"]) for row in rows]
