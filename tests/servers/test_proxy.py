"""The fault proxy, in front of a plain echo server."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Self

import pytest

from tests.servers.process import wait_until
from tests.servers.proxy import Proxy

WITHIN_SECONDS = 5.0
SHORT_SECONDS = 0.2


class Echo:
    """An echo server in a thread of its own, which counts what reached it."""

    def __init__(self) -> None:
        self.received = b""
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1024):
                self.received += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(WITHIN_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


class Client:
    """A client that gives up soon."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, proxy: Proxy) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", proxy.port))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self, count: int = 1024, within: float = WITHIN_SECONDS) -> bytes:
        async with asyncio.timeout(within):
            return await self.reader.read(count)

    async def receive_all(self) -> bytes:
        async with asyncio.timeout(WITHIN_SECONDS):
            return await self.reader.read()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()
        await asyncio.sleep(0)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        yield server


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as started:
        yield started


@pytest.mark.asyncio
async def test_forwards_both_ways(proxy: Proxy) -> None:
    async with await Client.connect(proxy) as one, await Client.connect(proxy) as two:
        one.send(b"one")
        two.send(b"two")
        assert await one.receive() == b"one"
        assert await two.receive() == b"two"
        assert proxy.connections == 2


@pytest.mark.asyncio
async def test_the_end_of_one_side_reaches_the_other(proxy: Proxy, echo: Echo) -> None:
    async with await Client.connect(proxy) as client:
        client.send(b"last words")
        client.writer.write_eof()
        assert await client.receive_all() == b"last words"
    wait_until(lambda: proxy.connections == 0, within=WITHIN_SECONDS, what="the end")


@pytest.mark.asyncio
async def test_cut_resets_connections_and_welcomes_new_ones(proxy: Proxy) -> None:
    async with await Client.connect(proxy) as client:
        client.send(b"x")
        assert await client.receive() == b"x"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await client.receive()
    async with await Client.connect(proxy) as client:
        client.send(b"again")
        assert await client.receive() == b"again"


@pytest.mark.asyncio
async def test_refuse_until_accept(proxy: Proxy) -> None:
    async with await Client.connect(proxy) as client:
        client.send(b"x")
        assert await client.receive() == b"x"
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            await client.receive()
    with pytest.raises(ConnectionRefusedError):
        await Client.connect(proxy)
    proxy.accept()
    async with await Client.connect(proxy) as client:
        client.send(b"again")
        assert await client.receive() == b"again"


@pytest.mark.asyncio
async def test_swallowed_replies_never_arrive_though_the_request_did(
    proxy: Proxy, echo: Echo
) -> None:
    async with await Client.connect(proxy) as client:
        client.send(b"before ")
        assert await client.receive() == b"before "
        proxy.swallow("replies")
        client.send(b"commit")
        await asyncio.to_thread(proxy.wait_swallowed)
        assert echo.received == b"before commit"
        with pytest.raises(TimeoutError):
            await client.receive(within=SHORT_SECONDS)
        proxy.heal()
        with pytest.raises(ConnectionResetError):  # its answer is lost for good
            await client.receive()
    async with await Client.connect(proxy) as client:
        client.send(b"after")
        assert await client.receive() == b"after"


@pytest.mark.asyncio
async def test_swallowed_requests_never_reach_the_server(proxy: Proxy, echo: Echo) -> None:
    async with await Client.connect(proxy) as client:
        proxy.swallow("requests")
        client.send(b"lost")
        await asyncio.to_thread(proxy.wait_swallowed)
        assert echo.received == b""


@pytest.mark.asyncio
async def test_a_black_hole_hides_the_end_of_a_connection(proxy: Proxy) -> None:
    async with await Client.connect(proxy) as client:
        client.send(b"x")
        assert await client.receive() == b"x"
        proxy.swallow("replies")
        client.writer.write_eof()  # the echo server closes too
        with pytest.raises(TimeoutError):
            await client.receive(within=SHORT_SECONDS)


@pytest.mark.asyncio
async def test_wait_swallowed_gives_up(proxy: Proxy) -> None:
    proxy.swallow("replies")
    with pytest.raises(TimeoutError):
        proxy.wait_swallowed(within=0.01)


@pytest.mark.asyncio
async def test_delay_holds_data_back_until_healed(proxy: Proxy) -> None:
    async with await Client.connect(proxy) as client:
        proxy.delay(0.1)
        began = time.monotonic()
        client.send(b"slow")
        assert await client.receive() == b"slow"
        assert time.monotonic() - began >= 0.2  # once each way
        proxy.heal()
        client.send(b"quick")
        assert await client.receive() == b"quick"


@pytest.mark.asyncio
async def test_cut_after_some_bytes_of_the_reply(proxy: Proxy, echo: Echo) -> None:
    async with await Client.connect(proxy) as client:
        proxy.cut_after(4)
        client.send(b"abc")
        assert await client.receive() == b"abc"
        client.send(b"def")
        assert await client.receive_all() == b"d"
        assert echo.received == b"abcdef"
    async with await Client.connect(proxy) as client:  # once only
        client.send(b"abcdefgh")
        assert await client.receive() == b"abcdefgh"


@pytest.mark.asyncio
async def test_cut_after_some_bytes_of_the_request(proxy: Proxy, echo: Echo) -> None:
    async with await Client.connect(proxy) as client:
        proxy.cut_after(2, "requests")
        client.send(b"abcdef")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            async with asyncio.timeout(WITHIN_SECONDS):
                await client.reader.readexactly(3)
    wait_until(lambda: echo.received == b"ab", within=WITHIN_SECONDS, what="the beginning")


@pytest.mark.asyncio
async def test_a_server_that_is_down_looks_down(echo: Echo) -> None:
    with Proxy(1) as proxy:
        async with await Client.connect(proxy) as client:
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                async with asyncio.timeout(WITHIN_SECONDS):
                    await client.reader.readexactly(1)


def test_stop_twice() -> None:
    proxy = Proxy(1).start()
    proxy.stop()
    proxy.stop()


def test_url_for_keeps_everything_but_the_address() -> None:
    proxy = Proxy(1)
    try:
        assert proxy.url_for("amqp://guest:guest@127.0.0.1:5672/vhost?heartbeat=5") == (
            f"amqp://guest:guest@127.0.0.1:{proxy.port}/vhost?heartbeat=5"
        )
        assert proxy.url_for("kafka://127.0.0.1:9092") == f"kafka://127.0.0.1:{proxy.port}"
    finally:
        proxy.stop()
