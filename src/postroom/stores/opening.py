"""Opening and closing a store with `async with`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, Unpack

from postroom.engine.sharing import close_shared, open_shared
from postroom.errors import ConfigError
from postroom.model.url import Url
from postroom.options import StoreOptions
from postroom.registry import load_store
from postroom.store import Store


class ContextManager:
    """A store as an async context manager.

    Relays, consumers and `async with` blocks of one process may share the object: the last of them
    closes it.
    """

    async def __aenter__(self) -> Self:
        try:
            await open_shared(self)
        except BaseException:
            await asyncio.shield(close_shared(self))
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.shield(close_shared(self))


@asynccontextmanager
async def open_store(
    store: str | Url | Store, **options: Unpack[StoreOptions]
) -> AsyncIterator[Store]:
    """Open a store, by its URL or as an object, and close it at the end of the block.

        async with open_store("sqlite:///app.db", prefix="billing_") as store:
            dead = await store.find(Filter(state=State.DEAD))

    With a URL it takes the options of the store's class, by name or in the URL. Relays and
    consumers may use the store at the same time: the last user closes it. Raises ConfigError,
    MissingExtraError, SchemaError if the tables are missing, and StoreError if the server is
    unreachable.
    """
    if isinstance(store, str | Url):
        store = load_store(store, **options)
    elif options:
        raise ConfigError("options are for a URL; a store that is given as an object has its own")
    try:
        await open_shared(store)
        yield store
    finally:
        await asyncio.shield(close_shared(store))
