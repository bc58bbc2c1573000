"""Repeats a command that met locks of another transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from postroom.errors import StoreLockedError
from postroom.model.pauses import Pauses

T = TypeVar("T")

TRIES: Final = 6
_FIRST_SECONDS, _LONGEST_SECONDS = 0.02, 0.5


async def past_locks(call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a call, which is repeated after a deadlock or a lock timeout.

    A StoreLockedError says that nothing was changed. It is raised after six attempts.
    """
    pauses = Pauses(_FIRST_SECONDS, _LONGEST_SECONDS)
    for _ in range(TRIES - 1):
        try:
            return await call()
        except StoreLockedError:
            await asyncio.sleep(pauses.grow())
    return await call()
