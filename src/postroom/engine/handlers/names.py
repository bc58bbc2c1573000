"""The names of handlers in the inbox.

An inbox row belongs to `<service>/<handler>`. Two services that share a table and a name would take
each other's messages for repeats, and a service that changes its name handles old messages again.
"""

from __future__ import annotations

from postroom.errors import ConfigError
from postroom.event import MAX_NAME_BYTES
from postroom.model.text import check_setting


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
