"""The names of handlers in the inbox, and the checks when a handler is registered.

An inbox row belongs to `<service>/<handler>`. Two services that share a table and a name would take
each other's messages for repeats, and a service that changes its name handles old messages again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from postroom.broker import Outcome, Verdict
from postroom.engine.handlers.context import takes_context
from postroom.engine.handlers.runs import Handler
from postroom.errors import ConfigError
from postroom.event import MAX_NAME_BYTES
from postroom.model.text import check_setting
from postroom.record import inbox_name

UNNAMED = Outcome(
    Verdict.MISCONFIGURED,
    "handlers need a name, which identifies their inbox rows: Handlers(name='payments', …)",
)


def unbound(option: str) -> Outcome:
    """Raise the error for handlers without transactions."""
    return Outcome(
        Verdict.MISCONFIGURED,
        f"handlers have no transactions to run in: pass {option}=… (or False for none), "
        "or let a relay bind its store",
    )


def check_name(what: str, name: object) -> None:
    """Raise ConfigError for what an inbox cannot keep as a name."""
    check_setting(what, name, MAX_NAME_BYTES)


def name_in_relay(stream: str | None, *, own_factory: bool) -> str | None:
    """Return the name of unnamed handlers as the destination of a relay.

    A stream has one destination, so the stream's name is unique in the store's own inbox. In the
    inbox of another database, another service may use the same name.
    """
    if stream is None:
        return None
    if own_factory:
        raise ConfigError(
            "handlers with their own transactions need a name, which identifies their inbox "
            "rows in that database: Handlers(name='payments', …). No other service that uses this "
            "inbox may use the same name, and it must stay the same in every deployment"
        )
    return f"relay.{stream}"


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
