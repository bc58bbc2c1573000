"""A lifespan for FastAPI and Starlette that runs relays, consumers and the bus in a web process.

    app = FastAPI(lifespan=lifespan(Relay(database, broker), Consumer(queue, database, handlers)))

They start before the first request and shut down gracefully after the last one. With several web
processes each has its own: relays share their lanes, consumers their queue.

A service that crashes logs the error and stops; the web process continues without it. Let the
health check fail in this case:

    @app.get("/readyz")
    def ready(response: Response) -> list[str]:
        found = problems(relay, consumer)
        response.status_code = 503 if found else 200
        return found

or end the process, so that its supervisor restarts it:

    lifespan(relay, consumer, on_crash=stop_process)
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol

from postroom.engine.lifecycle import Lifecycle


class Startable(Protocol):
    """A Relay, a Consumer, a Bus, or any object with these methods."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


_log = logging.getLogger(__name__)

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]
OnCrash = Callable[[Startable, BaseException], None]


def lifespan(
    *services: Startable, around: Lifespan | None = None, on_crash: OnCrash | None = None
) -> Lifespan:
    """Return a lifespan that starts the services in this order, and stops them in reverse order.

    around      the application's lifespan; it starts before the services and ends after them
    on_crash    called in the event loop with the service and its error when a service has
                crashed and stopped; `stop_process` ends the web process

    If a service cannot be started, the services before it are stopped and the application does not
    start.
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
                watching = asyncio.create_task(_watch(service, on_crash))
                stack.push_async_callback(_cancel, watching)
            yield

    return running


def stop_process(service: Startable, error: BaseException) -> None:  # noqa: ARG001 - an OnCrash
    """Send SIGTERM to this process: its server finishes open requests first.

    For `on_crash`, if a supervisor restarts the process, also after a clean exit: the process ends
    as after a stop by an operator (systemd: `Restart=always`).
    """
    _log.warning("%s crashed; this process stops (SIGTERM)", _name(service))
    signal.raise_signal(signal.SIGTERM)


def problems(*services: Startable) -> list[str]:
    """Return a line for each service that is not running, for a health check."""
    return [
        f"{_name(service)} {_state(service)}; see the log of this process"
        for service in services
        if not getattr(service, "is_running", True)
    ]


def _state(service: Startable) -> str:
    return "does not run" if getattr(service, "error", None) is None else "crashed"


async def _watch(service: Startable, on_crash: OnCrash | None) -> None:
    """Report the crash of a service; in a web process no other task waits for it."""
    wait = getattr(service, "wait", None)
    if wait is None:
        return
    try:
        await wait()
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        if not isinstance(service, Lifecycle):  # which has logged the error itself
            _log.error("%s crashed", _name(service), exc_info=error)
        if on_crash is None:
            _log.warning("%s crashed; the application continues without it", _name(service))
        else:
            try:
                on_crash(service, error)
            except Exception:
                _log.exception("on_crash failed for %s", _name(service))


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _name(service: Startable) -> str:
    kind, name = type(service).__name__, getattr(service, "name", None)
    return f"{kind} {name}" if isinstance(name, str) else kind
