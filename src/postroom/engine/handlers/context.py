"""What a handler knows of its event's history, and how what it adds continues that history (S3.1).

An event added through the context inherits the correlation id of the event that is being handled,
and its causation path is that event's, extended by [module, type]: this module acted on that type.
A path that would bite its own tail, or grow too long, is refused with CausationError: two modules
that answer each other for ever are stopped at the second round.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from postroom.event import Event, check_causation
from postroom.outbox import Outbox, SyncOutbox
from postroom.record import Record


class _Context:
    def __init__(self, module: str, event: Record, tx: Any) -> None:
        self.module = module
        self.event = event
        self.tx = tx

    @property
    def correlation_id(self) -> str:
        """The id that all events of one story share; a story begins with an event that has none."""
        return self.event.correlation_id or self.event.id

    @property
    def causation_path(self) -> tuple[tuple[str, str], ...]:
        """The path that events added here get. Raises CausationError for a loop."""
        return check_causation([*self.event.causation_path, (self.module, self.event.type)])

    def caused(self, event: Event) -> Event:
        """Return the event with this history; a correlation id of its own stays."""
        return replace(
            event,
            correlation_id=event.correlation_id or self.correlation_id,
            causation_path=self.causation_path,
        )


class Context(_Context):
    """Given to an async handler as its third argument.

    module    the name of the handlers
    event     what is being handled
    tx        the open transaction
    """

    def __init__(self, module: str, event: Record, tx: Any, outbox: Outbox) -> None:
        super().__init__(module, event, tx)
        self._outbox = outbox

    async def add(self, event: Event) -> Event:
        """Add an event to the handler's own transaction, with its history; see `Outbox.add`."""
        return await self._outbox.add(self.tx, self.caused(event))


class SyncContext(_Context):
    """`Context` for a handler that runs in a thread."""

    def __init__(self, module: str, event: Record, tx: Any, outbox: SyncOutbox) -> None:
        super().__init__(module, event, tx)
        self._outbox = outbox

    def add(self, event: Event) -> Event:
        """Add an event to the handler's own transaction, with its history; see `Outbox.add`."""
        return self._outbox.add(self.tx, self.caused(event))


def takes_context(function: Callable[..., Any]) -> bool:
    """Say whether a handler has a third parameter that wants to be filled."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin: it has no signature to look at
        return False
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    third = by_place[2] if len(by_place) > 2 else None
    return third is not None and (third.default is third.empty or third.name == "context")
