"""The signatures of handlers, for type checkers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from postroom.engine.handlers.context import Context, SyncContext
from postroom.record import Record

AsyncHandler = (
    Callable[[Record, Any], Awaitable[None]] | Callable[[Record, Any, Context], Awaitable[None]]
)
"""`async def handler(event, tx)`, or `(event, tx, context)`. The store determines the type of `tx`:
the handler's annotation is not checked.
"""

SyncHandler = Callable[[Record, Any], None] | Callable[[Record, Any, SyncContext], None]
"""`def handler(event, tx)`, or `(event, tx, context)`; it runs in a thread."""

Function = TypeVar("Function", bound=AsyncHandler | SyncHandler)
"""Registering returns the function unchanged."""
