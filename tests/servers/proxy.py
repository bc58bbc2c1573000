"""A TCP proxy that misbehaves on command, in front of any server.

It runs an event loop in a thread of its own, so that blocking and async tests use it alike: every
method returns when the change is in force.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tests.servers.process import free_port

CHUNK_BYTES = 65536
CALL_SECONDS = 10.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Direction = Literal["requests", "replies"]
ResultT = TypeVar("ResultT")


class Link:
    """One client's connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.lost_bytes = False
        self.is_cut = asyncio.Event()

    def cut(self) -> None:
        """Reset both sides, as a machine that vanishes or a firewall does."""
        self.is_cut.set()
        for side in (self.client, self.server):
            with contextlib.suppress(OSError):
                side.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE
                )
            side.transport.abort()


class Proxy:
    """Forwards bytes between clients and one server until told to do harm."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.target = (host, port)
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._arriving: set[asyncio.StreamWriter] = set()
        self._links: set[Link] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._delay_seconds = 0.0
        self._swallow: set[Direction] = set()
        self._budget: dict[Direction, int] = {}
        self._swallowed = threading.Event()

    def start(self) -> Self:
        """Listen."""
        self._thread.start()
        self._call(self._listen())
        return self

    def stop(self) -> None:
        """Cut every connection and end; a second call does nothing."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def url_for(self, url: str) -> str:
        """Give a server's URL with this proxy's address in place of the server's."""
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}"))

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._links)

    def cut(self) -> None:
        """Reset every connection; new ones are welcome."""
        self._do(self._cut_all)

    def refuse(self) -> None:
        """Reset every connection and refuse new ones, as a server does that is down."""
        self._call(self._stop_listening())
        self._do(self._cut_all)

    def accept(self) -> None:
        """Welcome new connections again, on the same port."""
        self._call(self._listen())

    def swallow(self, direction: Direction = "replies") -> None:
        """Read bytes of one direction and throw them away: the other side waits for ever."""
        self._swallowed.clear()
        self._do(lambda: self._swallow.add(direction))

    def wait_swallowed(self, within: float = CALL_SECONDS) -> None:
        """Wait until the proxy has thrown something away."""
        if not self._swallowed.wait(within):
            raise TimeoutError(f"nothing to swallow came within {within:g} s")

    def delay(self, seconds: float) -> None:
        """Hold back every piece of data, in both directions, this long."""

        def change() -> None:
            self._delay_seconds = seconds

        self._do(change)

    def cut_after(self, count: int, direction: Direction = "replies") -> None:
        """Forward this many bytes more, over all connections, then end the one that had more."""
        self._do(lambda: self._budget.__setitem__(direction, count))

    def heal(self) -> None:
        """Forward as at the beginning; connections that lost bytes are of no use and are cut."""

        def change() -> None:
            self._delay_seconds = 0.0
            self._swallow.clear()
            self._budget.clear()
            for link in list(self._links):
                if link.lost_bytes:
                    link.cut()

        self._do(change)
        self.accept()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _call(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)

    def _do(self, change: Callable[[], object]) -> None:
        async def work() -> None:
            change()

        self._call(work())

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            for one in listener.sockets:
                self._loop.remove_reader(one.fileno())
            # What was accepted becomes a connection in these turns; a server that is closed before
            # that loses its socket.
            for _ in range(3):
                await asyncio.sleep(0)
            listener.close()

    async def _close(self) -> None:
        await self._stop_listening()
        self._cut_all()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await asyncio.sleep(0)  # transports that were aborted close in the loop's next turn

    def _cut_all(self) -> None:
        for client in self._arriving:
            client.transport.abort()
        for link in list(self._links):
            link.cut()

    def _connected(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        # Noted before anything else runs: a task that is cancelled first would never do so.
        self._arriving.add(client)
        task = self._loop.create_task(self._serve(reader, client))
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection(*self.target)
        except OSError:
            client.transport.abort()
            return
        finally:
            self._arriving.discard(client)
        if client.transport.is_closing():  # cut meanwhile
            server.transport.abort()
            return
        link = Link(client, server)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(link, reader, server, "requests"))
                group.create_task(self._pump(link, answers, client, "replies"))
        finally:
            self._links.discard(link)
            link.cut()

    async def _pump(
        self,
        link: Link,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        try:
            while data := await source.read(CHUNK_BYTES):
                if self._delay_seconds:
                    await asyncio.sleep(self._delay_seconds)
                if direction in self._swallow:
                    link.lost_bytes = True
                    self._swallowed.set()
                    continue
                left = self._budget.get(direction)
                if left is not None and len(data) > left:
                    del self._budget[direction]
                    target.write(data[:left])
                    target.close()  # not a reset: that could overtake the bytes before it
                    await target.wait_closed()
                    link.cut()
                    return
                if left is not None:
                    self._budget[direction] = left - len(data)
                target.write(data)
                await target.drain()
        except OSError:
            await self._hide_end(link, self._swallow)
            link.cut()
        else:
            await self._hide_end(link, self._swallow & {direction})
            # One side has said its last word; the other may still answer.
            with contextlib.suppress(OSError):  # or has gone meanwhile
                target.write_eof()

    async def _hide_end(self, link: Link, swallowing: set[Direction]) -> None:
        # In a black hole the end of a connection is lost like its bytes.
        if swallowing:
            link.lost_bytes = True
            await link.is_cut.wait()
