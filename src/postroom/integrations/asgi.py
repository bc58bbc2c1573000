"""Relays, consumers and the bus inside of a web process: a lifespan for FastAPI and Starlette.

    app = FastAPI(lifespan=lifespan(Relay(database, broker), Consumer(queue, database, handlers)))

They start before the first request is taken and stop, in peace, after the last one. With several
web processes each has its own: relays share their work, consumers their queue.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol


class Startable(Protocol):
    """A Relay, a Consumer, a Bus, or anything else with these."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def lifespan(*services: Startable, around: Lifespan | None = None) -> Lifespan:
    """Return a lifespan that starts the services in this order, and stops them in reverse.

    around    a lifespan of the application's own; it begins before them and ends after them

    What cannot be started stops those before it, and the application does not come up.
    """

    @asynccontextmanager
    async def running(app: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if around is not None:
                await stack.enter_async_context(around(app))
            for service in services:
                await service.start()
                stack.push_async_callback(service.stop)
            yield

    return running
