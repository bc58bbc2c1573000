"""Waking the relays of this process: a registry from stream to the callbacks of who serves it.

A kick is a hint that something was committed. It may be lost or come too often; correctness never
rests on it, only the delay does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import Protocol

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_subscribers: dict[str, list[Callable[[], None]]] = {}


class Notifier(Protocol):
    """Carries a kick to other processes; it must neither block nor use the caller's transaction."""

    def notify(self, streams: Collection[str] | None) -> None:
        """Tell that events of these streams were committed; None: of any stream."""


def subscribe(stream: str, callback: Callable[[], None]) -> Callable[[], None]:
    """Have `callback` called at every kick of the stream; returns what ends that (twice is safe).

    It is called in the thread that kicks, so an event loop is reached with `call_soon_threadsafe`.
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


def kick(streams: Collection[str] | None = None) -> None:
    """Call those who serve these streams, or all of them. Never raises: the commit has happened."""
    with _lock:
        wanted = _subscribers.keys() if streams is None else dict.fromkeys(streams)
        callbacks = [callback for stream in wanted for callback in _subscribers.get(stream, ())]
    for callback in callbacks:
        try:
            callback()
        except Exception:
            _log.exception("a relay could not be woken; it will find the events by polling")
