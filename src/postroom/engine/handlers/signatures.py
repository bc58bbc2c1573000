"""The signatures of handlers: for type checkers, and checked when a function is registered."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from postroom.engine.handlers.context import Context, SyncContext, takes_context
from postroom.engine.handlers.names import check_name
from postroom.engine.handlers.runs import Handler
from postroom.errors import ConfigError
from postroom.record import Record, inbox_name

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


def handler_of(function: Callable[..., Any], name: str | None, service: str) -> Handler:
    """Return the handler for a function. Raises ConfigError if it cannot be one."""
    if not callable(function):
        raise ConfigError(f"a handler must be a function (event, tx), not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError("a handler must be a function that returns, not a generator")
    chosen = name if name is not None else getattr(function, "__name__", None)
    if chosen is None or chosen == "<lambda>":
        raise ConfigError("this handler has no name; give it one: @handlers.on(…, name=…)")
    check_name("a handler's name", inbox_name(service, chosen))
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with `async def __call__`
    )
    return Handler(chosen, function, is_async, takes_context(function))
