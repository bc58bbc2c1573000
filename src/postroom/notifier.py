"""Notifier: wakes relays after a commit. Relays of this process subscribe to their streams.

A kick is a hint that an event was committed. It may be lost or duplicated: only latency depends on
it, never correctness.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import Protocol
from weakref import WeakKeyDictionary

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_subscribers: dict[str, list[Callable[[], None]]] = {}
_connections: WeakKeyDictionary[object, tuple[str, bool]] = WeakKeyDictionary()


class Notifier(Protocol):
    """Sends kicks to other processes; must neither block nor use the caller's transaction."""

    def notify(self, streams: Collection[str] | None) -> None:
        """Notify that events of these streams were committed; None: of any stream."""


def subscribe(stream: str, callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` at every kick of the stream; returns a function that unsubscribes.

    The callback runs in the thread that kicks; use `call_soon_threadsafe` to reach an event loop.
    """
    with _lock:
        _subscribers.setdefault(stream, []).append(callback)
    active = [True]

    def unsubscribe() -> None:
        with _lock:
            if active:
                active.clear()
                callbacks = _subscribers[stream]
                callbacks.remove(callback)
                if not callbacks:
                    del _subscribers[stream]

    return unsubscribe


def report_connection(owner: object, part: str, *, works: bool) -> None:
    """Report whether a connection for kicks between processes works, for the metrics.

    `owner` uses the connection, as a `part`: listener or notifier.
    """
    with _lock:
        _connections[owner] = (part, works)


def forget_connection(owner: object) -> None:
    """The owner does not use a connection any more."""
    with _lock:
        _connections.pop(owner, None)


def working_connections() -> dict[str, bool]:
    """Return, for each part in use in this process, whether all its connections work."""
    found: dict[str, bool] = {}
    with _lock:
        for part, works in _connections.values():
            found[part] = found.get(part, True) and works
    return found


def kick(streams: Collection[str] | None = None) -> None:
    """Call the subscribers of these streams, or all. Never raises: the commit has happened."""
    with _lock:
        wanted = _subscribers.keys() if streams is None else dict.fromkeys(streams)
        callbacks = [callback for stream in wanted for callback in _subscribers.get(stream, ())]
    for callback in callbacks:
        try:
            callback()
        except Exception:
            _log.exception("cannot wake a relay; it finds the events by polling")
