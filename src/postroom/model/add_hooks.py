"""What telemetry does with every event that is added in this process: nothing, unless asked to.

The list is empty by default and is looked at once for each event: that is all it costs.
"""

from __future__ import annotations

from collections.abc import Callable

from postroom.event import Event

Hook = Callable[[Event], Event]

hooks: list[Hook] = []
"""Each sees an event before it is encoded, and returns it or another in its place."""


def seen(event: Event) -> Event:
    """Show an event to those who want to see it. What one of them raises fails the `add`."""
    for hook in hooks:
        event = hook(event)
    return event
