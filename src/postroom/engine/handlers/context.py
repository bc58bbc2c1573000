"""The causation of a handler's event, and of the events that the handler adds.

An event added through the context inherits the correlation id of the event being handled, whose id
becomes its causation id. Its causation path is that event's path, extended by [module, type]: this
module reacted to that type. A path that contains a cycle, or grows too long, is refused with
CausationError: two modules that answer each other endlessly are stopped in the second round.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, overload

from postroom.event import Event, check_causation
from postroom.outbox import Outbox, SyncOutbox
from postroom.record import Record
from postroom.transactions.inserts import OnDuplicate


class _Context:
    def __init__(self, module: str, event: Record, tx: Any) -> None:
        self.module = module
        self.event = event
        self.tx = tx

    @property
    def correlation_id(self) -> str:
        """The id shared by all events with the same origin; an event without one starts its own."""
        return self.event.correlation_id or self.event.id

    @property
    def causation_path(self) -> tuple[tuple[str, str], ...]:
        """The path for events added here. Raises CausationError for a loop."""
        return check_causation([*self.event.causation_path, (self.module, self.event.type)])

    def caused(self, event: Event) -> Event:
        """Return the event with this history; its own correlation and causation ids stay."""
        return replace(
            event,
            correlation_id=event.correlation_id or self.correlation_id,
            causation_path=self.causation_path,
            causation_id=event.causation_id or self.event.id,
        )


class Context(_Context):
    """Given to an async handler as its third argument.

    module    the name of the handlers
    event     the event being handled
    tx        the open transaction
    """

    def __init__(self, module: str, event: Record, tx: Any, outbox: Outbox) -> None:
        super().__init__(module, event, tx)
        self._outbox = outbox

    @overload
    async def add(self, event: Event, *, on_duplicate: Literal["raise"] = "raise") -> Event: ...
    @overload
    async def add(self, event: Event, *, on_duplicate: OnDuplicate) -> Event | None: ...
    async def add(self, event: Event, *, on_duplicate: OnDuplicate = "raise") -> Event | None:
        """Add an event to the handler's own transaction, with its history; see `Outbox.add`."""
        return await self._outbox.add(self.tx, self.caused(event), on_duplicate=on_duplicate)

    async def add_many(
        self, events: Iterable[Event], *, on_duplicate: OnDuplicate = "raise"
    ) -> list[Event]:
        """Add several events in their order; see `Outbox.add_many`."""
        caused = [self.caused(event) for event in events]
        return await self._outbox.add_many(self.tx, caused, on_duplicate=on_duplicate)

    async def cancel(self, event_id: str) -> bool:
        """Cancel a delayed event in the handler's own transaction; see `Outbox.cancel`."""
        return await self._outbox.cancel(self.tx, event_id)

    async def reschedule(self, event_id: str, at: datetime) -> bool:
        """Change the time of a delayed event; see `Outbox.reschedule`."""
        return await self._outbox.reschedule(self.tx, event_id, at)


class SyncContext(_Context):
    """`Context` for a handler that runs in a thread."""

    def __init__(self, module: str, event: Record, tx: Any, outbox: SyncOutbox) -> None:
        super().__init__(module, event, tx)
        self._outbox = outbox

    @overload
    def add(self, event: Event, *, on_duplicate: Literal["raise"] = "raise") -> Event: ...
    @overload
    def add(self, event: Event, *, on_duplicate: OnDuplicate) -> Event | None: ...
    def add(self, event: Event, *, on_duplicate: OnDuplicate = "raise") -> Event | None:
        """Add an event to the handler's own transaction, with its history; see `Outbox.add`."""
        return self._outbox.add(self.tx, self.caused(event), on_duplicate=on_duplicate)

    def add_many(
        self, events: Iterable[Event], *, on_duplicate: OnDuplicate = "raise"
    ) -> list[Event]:
        """Add several events in their order; see `Outbox.add_many`."""
        caused = [self.caused(event) for event in events]
        return self._outbox.add_many(self.tx, caused, on_duplicate=on_duplicate)

    def cancel(self, event_id: str) -> bool:
        """Cancel a delayed event in the handler's own transaction; see `Outbox.cancel`."""
        return self._outbox.cancel(self.tx, event_id)

    def reschedule(self, event_id: str, at: datetime) -> bool:
        """Change the time of a delayed event; see `Outbox.reschedule`."""
        return self._outbox.reschedule(self.tx, event_id, at)


def takes_context(function: Callable[..., Any]) -> bool:
    """Return whether a handler has a third parameter to be filled."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin: its signature cannot be inspected
        return False
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    third = by_place[2] if len(by_place) > 2 else None
    return third is not None and (third.default is third.empty or third.name == "context")
