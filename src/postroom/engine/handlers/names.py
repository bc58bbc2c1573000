"""The names by which an inbox knows handlers, and what must be right before one is registered.

An inbox row belongs to `<service>/<handler>`. Two services that share a table and a name would take
each other's messages for repeats, and a service that changes its name does old ones again.
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
    """Say that there is nothing to run in."""
    return Outcome(
        Verdict.MISCONFIGURED,
        f"handlers have no transactions to run in: pass {option}=… (or False for none), "
        "or let a relay bind its store",
    )


def check_name(what: str, name: object) -> None:
    """Raise ConfigError for what an inbox cannot keep as a name."""
    check_setting(what, name, MAX_NAME_BYTES)


def name_in_relay(stream: str | None, *, own_factory: bool) -> str | None:
    """Return the name of handlers that were given none, as the destination of a relay.

    The events of a stream are for one destination, so its name is enough in the store's own inbox.
    The inbox of another database may know another service by it.
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
    """Return the handler that a function is. Raises ConfigError for what is none."""
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
