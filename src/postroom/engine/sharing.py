"""Stores and destinations that several relays of one process use: the last one closes them."""

from __future__ import annotations

from typing import Any

_users: dict[int, tuple[Any, int]] = {}  # by identity; the object is kept alive while it is used


async def open_shared(thing: Any) -> None:
    """Open a store or broker; may be called by several users.

    It counts as used even if it could not be opened: `close_shared` is owed in any case.
    """
    _, users = _users.get(id(thing), (thing, 0))
    _users[id(thing)] = (thing, users + 1)
    await thing.open()


async def close_shared(thing: Any) -> None:
    """Close it, if nobody else uses it."""
    _, users = _users.pop(id(thing), (thing, 1))
    if users > 1:
        _users[id(thing)] = (thing, users - 1)
    else:
        await thing.close()
