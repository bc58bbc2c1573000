"""Relays, consumers and the bus inside of a web process: a lifespan for FastAPI and Starlette.

    app = FastAPI(lifespan=lifespan(Relay(database, broker), Consumer(queue, database, handlers)))

They start before the first request is taken and stop, in peace, after the last one. With several
web processes each has its own: relays share their work, consumers their queue.

A service that breaks down is logged as an error, and the web process goes on without it. Let its
health check fail then, so that somebody starts it again:

    @app.get("/readyz")
    def ready(response: Response) -> list[str]:
        found = problems(relay, consumer)
        response.status_code = 503 if found else 200
        return found
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol


class Startable(Protocol):
    """A Relay, a Consumer, a Bus, or anything else with these."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


_log = logging.getLogger(__name__)

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
            for service in services:
                stack.push_async_callback(_cancel, asyncio.create_task(_watch(service)))
            yield

    return running


def problems(*services: Startable) -> list[str]:
    """Return a line for each service that does not run; for a health check. Empty: all is well."""
    return [
        f"{_name(service)} does not run; see the log of this process"
        for service in services
        if not getattr(service, "is_running", True)
    ]


async def _watch(service: Startable) -> None:
    """Log it when a service breaks down: nobody else in a web process would say so."""
    wait = getattr(service, "wait", None)
    if wait is None:
        return
    try:
        await wait()
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        _log.error("%s broke down and does not run any more", _name(service), exc_info=error)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _name(service: Startable) -> str:
    kind, name = type(service).__name__, getattr(service, "name", None)
    return f"{kind} {name}" if isinstance(name, str) else kind
