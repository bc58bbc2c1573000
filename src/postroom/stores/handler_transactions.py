"""Common part of the stores' handler transactions: a handler may use a transaction, not end it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from postroom.errors import TransactionError

_REFUSED = (
    "a handler must not call {name}(): postroom commits its transaction when it returns and rolls "
    "it back when it raises. To ignore a database error, run the statement in a savepoint; to do "
    "nothing, return"
)


@contextmanager
def guarded(target: Any, *names: str) -> Iterator[None]:
    """Refuse these methods of a connection while a handler uses it."""
    for name in names:
        setattr(target, name, _refusal(name))
    try:
        yield
    finally:
        for name in names:
            delattr(target, name)


def _refusal(name: str) -> Any:
    def refuse(*_args: Any, **_options: Any) -> NoReturn:
        raise TransactionError(_REFUSED.format(name=name))

    return refuse
