"""A cancel in the middle of a connect, whose driver swallows it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncmy
import pytest

from postroom.stores.mysql import MysqlStore

pytestmark = pytest.mark.server


async def test_a_cancel_that_the_driver_swallows_ends_the_connect(mariadb_url, monkeypatch):
    """As `asyncio.wait_for` of Python 3.11, which asyncmy calls: a result that comes with a cancel
    wins. The service then went on, and its relay needed six seconds to stop.
    """
    connect, opened = asyncmy.connect, []

    async def swallowing(**arguments):
        opened.append(await connect(**arguments))
        asyncio.current_task().cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return opened[-1]

    monkeypatch.setattr(asyncmy, "connect", swallowing)
    connecting = asyncio.create_task(MysqlStore(mariadb_url).target.connect())
    await asyncio.wait({connecting})
    assert connecting.cancelled()
    assert opened[0]._transport is None, "it is closed"
