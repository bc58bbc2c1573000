"""Hooks that telemetry runs on every event added in this process.

The list is empty by default; the cost without hooks is one check per event.
"""

from __future__ import annotations

from collections.abc import Callable

from postroom.event import Event

Hook = Callable[[Event], Event]

hooks: list[Hook] = []
"""Each hook gets an event before it is encoded, and returns it or a replacement."""


def seen(event: Event) -> Event:
    """Pass an event through all hooks. An exception from a hook fails the `add`."""
    for hook in hooks:
        event = hook(event)
    return event
