"""A server that asks for the password in clear text, as any program on its port can."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest

from postroom.errors import StoreError
from postroom.stores.mysql import MysqlStore
from postroom.stores.mysql.handler_transactions import HandlerTransactions
from postroom.stores.mysql.session import Target
from postroom.stores.mysql.tls import Tls

CAPABILITIES = 0x00_0F_A2_8D | 1 << 15 | 1 << 19  # 4.1 protocol, secure connection, plugins
SALT = b"12345678901234567890"
GREETING = (
    b"\x0a8.0.0\0"
    + (1).to_bytes(4, "little")
    + SALT[:8]
    + b"\0"
    + (CAPABILITIES & 0xFFFF).to_bytes(2, "little")
    + b"\x2d\x02\x00"
    + (CAPABILITIES >> 16).to_bytes(2, "little")
    + b"\x15"
    + bytes(10)
    + SALT[8:]
    + b"\0mysql_native_password\0"
)


def packet(number, body):
    return len(body).to_bytes(3, "little") + bytes([number]) + body


@asynccontextmanager
async def rogue(plugin, asks=b""):
    """Speak the protocol up to the question for the password; gives the port and what is heard."""
    heard = bytearray()

    async def serve(reader, writer):
        writer.write(packet(0, GREETING))
        heard.extend(await reader.read(4_096))
        writer.write(packet(2, b"\xfe" + plugin + b"\0" + asks))
        with suppress(ConnectionError):
            heard.extend(await reader.read(4_096))  # or the end
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        served.set()

    served = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], heard
        await served.wait()


REQUESTS = pytest.mark.parametrize(
    ("plugin", "asks"),
    [(b"mysql_clear_password", b""), (b"dialog", b"\x05Password: ")],
    ids=["clear", "dialog"],
)


@REQUESTS
async def test_no_password_is_sent_in_clear_text_over_an_open_line(plugin, asks):
    # A suspicion of the review: asyncmy answers such a server.
    async with rogue(plugin, asks) as (port, heard):
        store = MysqlStore(f"mysql://app:s3cret@127.0.0.1:{port}/shop")
        with pytest.raises(StoreError, match=r"password in clear text.*ssl_mode=verify_identity"):
            await store.open()
        await store.close()
    assert b"app" in heard
    assert b"s3cret" not in heard


@REQUESTS
async def test_nor_by_the_driver_of_sync_handlers(plugin, asks):  # X-susp.2
    async with rogue(plugin, asks) as (port, heard):
        target = Target("127.0.0.1", port, "app", "s3cret", "shop")
        with pytest.raises(StoreError, match=r"password in clear text.*ssl_mode=verify_identity"):
            await asyncio.to_thread(open_sync_transaction, target)
    assert b"app" in heard
    assert b"s3cret" not in heard


def open_sync_transaction(target):
    with HandlerTransactions(target, 1).sync_transaction():
        pass


@pytest.mark.parametrize(
    ("more", "is_refused"),
    [({}, True), ({"tls": Tls()}, False), ({"socket": "/run/mysqld.sock"}, False)],
    ids=["open line", "TLS", "socket"],
)
async def test_where_nobody_listens_the_server_may_ask(monkeypatch, more, is_refused):
    given = []

    def connect(**options):
        given.append(options)
        raise ConnectionRefusedError

    monkeypatch.setattr("asyncmy.connect", connect)
    monkeypatch.setattr("pymysql.connect", connect)
    target = Target("h", 1, "app", "s3cret", "shop", **more)
    with pytest.raises(StoreError):
        await target.connect()
    with pytest.raises(StoreError):
        open_sync_transaction(target)
    assert [bool(options["auth_plugin_map"]) for options in given] == [is_refused, is_refused]
