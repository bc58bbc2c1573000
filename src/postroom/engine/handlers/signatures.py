"""What a handler looks like, for type checkers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from postroom.engine.handlers.context import Context, SyncContext
from postroom.record import Record

AsyncHandler = (
    Callable[[Record, Any], Awaitable[None]] | Callable[[Record, Any, Context], Awaitable[None]]
)
"""`async def handler(event, tx)`, or `(event, tx, context)`. The store decides what `tx` is: the
handler's annotation is believed."""

SyncHandler = Callable[[Record, Any], None] | Callable[[Record, Any, SyncContext], None]
"""`def handler(event, tx)`, or `(event, tx, context)`; it runs in a thread."""

Function = TypeVar("Function", bound=AsyncHandler | SyncHandler)
"""A function that is registered stays what it is."""
