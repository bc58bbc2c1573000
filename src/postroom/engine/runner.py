"""Several relays in one process: they start together and stop together, on a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from postroom.engine.relay import Relay
from postroom.errors import ConfigError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run_all(relays: Sequence[Relay], *, on_stop: Callable[[], None] | None = None) -> bool:
    """Run relays until SIGTERM or SIGINT, or until one breaks down; a second signal stops at once.

    Returns True if all stopped in peace, False if at once. Raises what broke one down, after the
    others have stopped in peace.
    """
    loop = asyncio.get_running_loop()
    asked, at_once = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (at_once if asked.is_set() else asked).set()

    try:
        for number in _SIGNALS:
            loop.add_signal_handler(number, on_signal)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise ConfigError(
            "run_all() listens to signals and needs the main thread; use start() and stop() here"
        ) from error
    lives = [asyncio.create_task(_live(relay, asked)) for relay in relays]
    ending: asyncio.Task[None] | None = None
    try:
        await _any(asyncio.create_task(asked.wait()), *lives)
        asked.set()  # one that broke down takes the others with it
        if on_stop is not None:
            on_stop()
        ending = asyncio.create_task(_stop_all(relays))
        await _any(asyncio.create_task(at_once.wait()), ending)
        in_peace = ending.done()
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        for relay in relays:
            await relay.kill()
        if ending is not None:
            ending.cancel()
    await asyncio.wait(lives)
    for life in lives:
        life.result()  # raises what broke it down
    return in_peace


async def _live(relay: Relay, asked: asyncio.Event) -> None:
    await relay._start_patiently(asked)
    if relay.is_running:
        await relay.wait()


async def _stop_all(relays: Sequence[Relay]) -> None:
    await asyncio.gather(*(relay.stop() for relay in relays))


async def _any(first: asyncio.Task[object], *others: asyncio.Task[None]) -> None:
    """Wait until one of these has ended; the first is then no longer needed."""
    await asyncio.wait({first, *others}, return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
