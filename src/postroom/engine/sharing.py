"""Stores and destinations that several relays of one process use: the last one closes them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class _Use:
    thing: Any  # kept alive while it is used: it is known by its identity
    users: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


_uses: dict[int, _Use] = {}


async def open_shared(thing: Any) -> None:
    """Open a store or broker; may be called by several users, also at the same time: the others
    wait for the first, and one connection is made.

    It counts as used even if it could not be opened: `close_shared` is owed in any case.
    """
    use = _uses.setdefault(id(thing), _Use(thing))
    use.users += 1
    async with use.turn:
        await thing.open()


async def close_shared(thing: Any) -> None:
    """Close it, if nobody else uses it."""
    use = _uses.setdefault(id(thing), _Use(thing, 1))
    use.users -= 1
    try:
        async with use.turn:
            if use.users <= 0:
                await thing.close()
    finally:
        if use.users <= 0 and _uses.get(id(thing)) is use:
            del _uses[id(thing)]
