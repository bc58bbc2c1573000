"""Stores and destinations shared by several relays of one process: the last user closes them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class _Use:
    thing: Any  # keeps it alive while it is used: it is identified by its id()
    users: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


_uses: dict[int, _Use] = {}


async def open_shared(thing: Any) -> None:
    """Open a store or broker. Several users may call this, even concurrently: the others wait for
    the first, and only one connection is opened.

    It counts as used even if opening fails: `close_shared` must be called in any case.
    """
    use = _uses.setdefault(id(thing), _Use(thing))
    use.users += 1
    async with use.turn:
        await thing.open()


async def close_shared(thing: Any) -> None:
    """Close it, if it has no other users."""
    use = _uses.setdefault(id(thing), _Use(thing, 1))
    use.users -= 1
    try:
        async with use.turn:
            if use.users <= 0:
                await thing.close()
    finally:
        if use.users <= 0 and _uses.get(id(thing)) is use:
            del _uses[id(thing)]
