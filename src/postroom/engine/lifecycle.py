"""The life cycle of a relay, a consumer and a bus: start, stop, kill, wait, run.

    start → _open (open the store, the broker, …) → _begin (start the services)
    stop  → _finish (finish what is in flight, stop the services) → close what was opened
    kill  → as stop, without waiting for what is in flight

Start and end never overlap. A service that crashes ends the whole: a relay that runs in part would
look healthy and deliver nothing. The error is logged once, reported as an Alarm, kept in `error`,
passed to `on_crash` and raised by `wait`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from postroom.engine.fact_log import LogObserver
from postroom.engine.runner import run_all
from postroom.engine.service import crash_of, end, wait_for
from postroom.engine.sharing import close_shared, open_shared
from postroom.errors import SchemaError, StoreError
from postroom.model.pauses import Pauses
from postroom.observer import Alarm, Fact, Observer, StoreRecovered, StoreTrouble, tell
from postroom.record import short_error

_CLOSE_SECONDS = 10.0  # a driver may hang on a dead server
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # between attempts to start
_OPENING = "opening the store (will keep trying)"
_log = logging.getLogger(__name__)

Context = TypeVar("Context")


class Lifecycle(ABC, Generic[Context]):
    """Start, stop, kill, wait and run. `Context` is the shared state of the services of one run.

    log         log the facts (`fact_log`), unless a LogObserver is among the observers
    on_crash    called with the error when a service has crashed, before the rest is stopped
    """

    _noun: ClassVar[str]

    def __init__(self, observers: Iterable[Observer] = (), *, log: bool = False) -> None:
        self.on_crash: Callable[[BaseException], None] | None = None
        given = tuple(observers)
        logs = log and not any(isinstance(each, LogObserver) for each in given)
        self._observers = (*given, LogObserver()) if logs else given
        self._context: Context | None = None
        self._opened: list[Any] = []
        self._opening: asyncio.Task[Context] | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self._lifecycle_lock = asyncio.Lock()
        self._stopping = False
        self._killed = asyncio.Event()  # a new one for each life, which is known by it
        self._stopped = asyncio.Event()
        self._error: BaseException | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started, has not stopped, and none of its services has crashed."""
        return self._context is not None and self._error is None

    @property
    def error(self) -> BaseException | None:
        """The error of the service that crashed since the last start; None if none has."""
        return self._error

    async def start(self) -> None:
        """Open everything and begin. A second call does nothing.

        Raises SchemaError if the tables are missing or need a migration, StoreError if the store
        is unreachable. An unreachable broker is waited for in the background.
        """
        async with self._lifecycle_lock:
            if self._context is not None:
                if not self._stopping and self._error is None:
                    return
                await self._to_the_end(self._end())  # of the last run
            self._error, self._killed = None, asyncio.Event()
            opening = self._opening = asyncio.create_task(self._open())
            try:
                await asyncio.wait({opening})
                if self._error is not None:  # of a part that has begun already
                    raise self._error
                if not self._killed.is_set():
                    self._live(opening.result())
                    return
            finally:
                self._opening = None
                await end(opening)  # if the caller was cancelled
                crash_of(opening)  # whether it is raised or not: asyncio need not report it
                if self._context is None:
                    await self._to_the_end(self._close_opened())
            self._stopped.set()  # killed

    async def stop(self) -> None:
        """Finish what is in flight within `stop_seconds`, then stop; twice is safe.

        If the call is cancelled the stop goes on; another call waits for it.
        """
        await self._to_the_end(self._stop())

    async def kill(self) -> None:
        """Stop without waiting for what is in flight: it may be repeated later.

        Ends a start, and shortens a stop, that is under way.
        """
        life = self._killed
        life.set()
        if self._opening is not None:
            self._opening.cancel()
        await self._to_the_end(self._stop(life))

    async def wait(self) -> None:
        """Wait until it has stopped; raises the error if one of its services crashed."""
        await self._stopped.wait()
        if self._error is not None:
            raise self._error

    async def run(self) -> bool:
        """Run until SIGTERM or SIGINT; a second signal stops at once.

        While the store is unreachable at the start it is waited for. Returns True if everything in
        flight was finished, False if it stopped at once. Raises the error of a crashed service.
        """
        return await run_all((self,))

    async def start_patiently(self, asked: asyncio.Event) -> bool:
        """Start; while the store is unreachable, report it once and try again, ever less often.

        Returns False if `asked` was set before it has started.
        """
        pauses, told = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE), False
        while not asked.is_set():
            try:
                await self.start()
            except SchemaError:
                raise
            except StoreError as error:
                if not told:
                    self._report_unreachable(error)
                    told = True
                await wait_for(asked, pauses.grow())
            else:
                if told:
                    self._tell(StoreRecovered(self._fact_stream, _OPENING))
                return True
        return False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # -- for the subclass ---------------------------------------------------------------------
    @property
    @abstractmethod
    def _title(self) -> str:
        """The name in log lines, as in "the relay of stream main"."""

    @property
    @abstractmethod
    def _fact_stream(self) -> str:
        """The stream that facts about the whole are reported for."""

    @abstractmethod
    async def _open(self) -> Context:
        """Open what is needed, by `_open_shared`; whatever fails, `_close_opened` follows."""

    @abstractmethod
    def _begin(self, context: Context) -> None:
        """Start the services."""

    @abstractmethod
    async def _finish(self, context: Context) -> None:
        """Finish what is in flight, unless killed, and stop the services. May be called again."""

    async def _open_shared(self, thing: Any) -> None:
        """Open a store, broker or source that others may use, too; it is closed at the end."""
        self._opened.append(thing)
        await open_shared(thing)

    async def _close_opened(self) -> None:
        opened, self._opened = self._opened, []
        for thing in reversed(opened):
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await close_shared(thing)

    async def _unless_killed(
        self, waiting: Coroutine[Any, Any, Any], seconds: float | None = None
    ) -> None:
        """Wait for something at most this long, and not after a kill."""
        task, killed = asyncio.create_task(waiting), asyncio.create_task(self._killed.wait())
        try:
            await asyncio.wait({task, killed}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(task, killed)
        if not task.cancelled():
            task.result()

    def _broke_down(self, error: BaseException, *, reported: bool = False) -> None:
        """A service crashed: stop the whole instead of running without it."""
        if self._error is not None:
            return
        self._error = error
        if self._context is None:  # `start` raises it
            if self._opening is not None:
                self._opening.cancel()
            return
        if reported:
            _log.warning("%s stops: one of its parts crashed", self._title)
        else:
            about = f"the {self._noun} crashed"
            self._tell(Alarm(self._fact_stream, about, short_error(error), is_logged=True))
            _log.error("%s crashed and stops", self._title, exc_info=error)
        self._in_background(self._stop_broken())
        if self.on_crash is not None:
            try:
                self.on_crash(error)
            except Exception:
                _log.exception("on_crash of %s failed", self._title)

    def _part_broke_down(self, error: BaseException) -> None:
        """A part with its own life cycle crashed; it has reported the error itself."""
        self._broke_down(error, reported=True)

    async def _stop_broken(self) -> None:
        await self.kill()

    def _tell(self, fact: Fact) -> None:
        tell(self._observers, fact)

    # -- inside -------------------------------------------------------------------------------
    def _live(self, context: Context) -> None:
        if self._stopped.is_set():
            self._stopped = asyncio.Event()  # the last run may have had another event loop
        self._context, self._stopping = context, False
        self._begin(context)

    async def _stop(self, life: asyncio.Event | None = None) -> None:
        """End this life, or whichever there is; not in the middle of a start, and once."""
        async with self._lifecycle_lock:
            if self._context is not None and (life is None or life is self._killed):
                await self._end()

    async def _end(self) -> None:
        assert self._context is not None
        self._stopping = True
        await self._finish(self._context)
        self._context, self._stopping = None, False
        try:
            await self._close_opened()
        finally:
            self._stopped.set()

    async def _to_the_end(self, ending: Coroutine[Any, Any, None]) -> None:
        """Run it in a separate task: the caller may be a handler, which ends with the relay."""
        await asyncio.shield(self._in_background(ending))

    def _in_background(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    def _report_unreachable(self, error: StoreError) -> None:
        self._tell(StoreTrouble(self._fact_stream, _OPENING, short_error(error)))
