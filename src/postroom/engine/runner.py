"""Several relays and consumers in one process: they start and stop together, on a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from postroom.engine.service import end
from postroom.errors import ConfigError

if TYPE_CHECKING:
    from postroom.engine.lifecycle import Lifecycle


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run_all(
    workers: Sequence[Lifecycle[Any]], *, on_stop: Callable[[bool], None] | None = None
) -> bool:
    """Run them until SIGTERM or SIGINT, or until one crashes; a second signal stops at once.

    Returns True if all stopped gracefully, False if at once. Raises the error of one that broke
    down, after the others have stopped gracefully. `on_stop` is called before the stop, with
    whether a signal asked for it.
    """
    asked, at_once = asyncio.Event(), asyncio.Event()
    _listen(asked, at_once)
    lives = [asyncio.create_task(_live(worker, asked)) for worker in workers]
    ending: asyncio.Task[None] | None = None
    try:
        await _any(asyncio.create_task(asked.wait()), *lives)
        by_signal = asked.is_set()
        asked.set()  # if one crashed, the others stop too
        if on_stop is not None:
            on_stop(by_signal)
        ending = asyncio.create_task(_stop(workers, lives))
        await _any(asyncio.create_task(at_once.wait()), ending)
        gracefully = ending.done()
        if gracefully:
            ending.result()
    finally:
        _unlisten()
        await end(*lives, *([ending] if ending is not None else []))
        for worker in workers:
            await worker.kill()
    for life in lives:
        if not life.cancelled():
            life.result()  # raises the error that it broke down with
    return gracefully


class Drainable(Protocol):
    """A relay, as far as a drain needs it."""

    async def drain(self, *, max_seconds: float | None) -> object: ...
    async def stop(self) -> None: ...
    async def kill(self) -> None: ...


async def drain_all(relays: Sequence[Drainable], *, max_seconds: float | None = None) -> bool:
    """Drain relays side by side. A signal ends the drain gracefully, a second one at once.

    Returns False if it ended at once. Raises the error of a drain after all have ended.
    """
    asked, at_once = asyncio.Event(), asyncio.Event()
    _listen(asked, at_once)
    drains = [asyncio.create_task(relay.drain(max_seconds=max_seconds)) for relay in relays]
    ends = asyncio.create_task(_ended(drains))
    stops = asyncio.create_task(_stop_drains(relays, asked))
    try:
        await _any(asyncio.create_task(at_once.wait()), ends)
        gracefully = ends.done()
    finally:
        _unlisten()
        for relay in relays:
            await relay.kill()  # nothing, if it has stopped
        await ends
        await end(stops)
    for drain in drains:
        if gracefully:
            drain.result()
        else:
            drain.exception()  # asyncio need not report it
    return gracefully


async def _ended(drains: Sequence[asyncio.Task[object]]) -> None:
    await asyncio.wait(drains)


async def _stop_drains(relays: Sequence[Drainable], asked: asyncio.Event) -> None:
    await asked.wait()
    await asyncio.gather(*(relay.stop() for relay in relays))


def _listen(asked: asyncio.Event, at_once: asyncio.Event) -> None:
    """Set the first event at the first signal, the other one at the second."""

    def on_signal() -> None:
        (at_once if asked.is_set() else asked).set()

    loop = asyncio.get_running_loop()
    try:
        for number in _SIGNALS:
            loop.add_signal_handler(number, on_signal)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise ConfigError(
            "run() listens to signals and needs the main thread; use start() and stop() here"
        ) from error


def _unlisten() -> None:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.remove_signal_handler(number)


async def _live(worker: Lifecycle[Any], asked: asyncio.Event) -> None:
    if await worker.start_patiently(asked):
        await worker.wait()


async def _stop(workers: Sequence[Lifecycle[Any]], lives: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*(worker.stop() for worker in workers))
    if lives:
        await asyncio.wait(lives)


async def _any(first: asyncio.Task[Any], *others: asyncio.Task[None]) -> None:
    """Wait until one of these has ended; the first is then no longer needed."""
    try:
        await asyncio.wait({first, *others}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(first)
