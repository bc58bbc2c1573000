"""Objects that only look like a connection are refused by `add` and `accept`."""

from __future__ import annotations

import sqlite3
from unittest.mock import AsyncMock, MagicMock, Mock, create_autospec

import pytest

from postroom import Event, Inbox, Outbox, SyncInbox, SyncOutbox, UnsupportedConnectionError
from postroom.transaction import AsyncTransaction

EVENT = Event(type="order.placed", payload={})


class HasEverything:
    """A proxy that answers for every name, as many clients and lazy objects do."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class HasAsyncEverything:
    def __getattr__(self, name):
        async def nothing(*args, **kwargs): ...

        return nothing


def set_by_hand():
    mock = Mock()
    mock.insert = AsyncMock()
    mock.check = Mock()
    return mock


LOOK_ALIKES = {
    "AsyncMock": AsyncMock,
    "MagicMock": MagicMock,
    "Mock": Mock,
    "spec of the port": lambda: AsyncMock(spec=AsyncTransaction),
    "spec of a driver": lambda: create_autospec(sqlite3.Connection, instance=True),
    "some methods set": set_by_hand,
    "__getattr__": HasEverything,
    "async __getattr__": HasAsyncEverything,
    "object": object,
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
async def test_what_only_looks_like_a_connection_is_refused(name):  # U18
    conn = LOOK_ALIKES[name]()
    with pytest.raises(UnsupportedConnectionError) as caught:
        await Outbox().add(conn, EVENT)
    if "Mock" in name or "spec" in name:
        assert "A mock stores nothing" in str(caught.value)
    with pytest.raises(UnsupportedConnectionError):
        await Outbox().add_many(conn, [EVENT])
    with pytest.raises(UnsupportedConnectionError):
        await Inbox("billing").accept(conn, EVENT)
    with pytest.raises(UnsupportedConnectionError):
        SyncOutbox().add(conn, EVENT)
    with pytest.raises(UnsupportedConnectionError):
        SyncInbox("billing").accept(conn, EVENT)
