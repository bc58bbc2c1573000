"""Every error that postroom raises, in one place.

PostroomError
├── EventError(ValueError)            an event that cannot be stored; names the field and the limit
│   ├── PayloadError                  the payload cannot be encoded; names the path inside it
│   └── CausationError                a causation path that bites its own tail or grows too long
├── DuplicateEventError               an event with this id is in the outbox already
├── TransactionError                  the caller's transaction cannot carry an event
│   ├── AutocommitError               the statement would commit by itself
│   ├── TransactionEndedError         it ended before its block did
│   └── UnsupportedConnectionError(TypeError)   not an object that postroom can write through
├── ConfigError(ValueError)           a setting, URL or option that makes no sense
│   └── MissingExtraError             a driver is not installed; names the extra
├── SchemaError                       the tables are missing, or newer than this code
├── StoreError                        the database refused or could not be asked
│   ├── StoreRetryableError           nothing was changed; the same call may be repeated
│   │   └── StoreLockedError          another transaction has locked what is needed
│   ├── StoreRefusedError             nothing was changed: the database refuses these values
│   ├── NumberTakenError              the sequence of the outbox is behind its table
│   └── StoreUnknownError             the connection went away: what happened is unknown
└── NotFoundError(LookupError)        no event with that id

`Retry` and `Reject` are signals, not errors: a handler raises them to say what should happen to
its event.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

_SHOWN_CHARS = 100


class PostroomError(Exception):
    """The base of all errors that postroom raises. They survive pickling, attributes included."""

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    kind: type[PostroomError], args: tuple[object, ...], facts: dict[str, object]
) -> PostroomError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class EventError(PostroomError, ValueError):
    """An event that cannot be stored. `field` names what is wrong; `limit` the bound it broke."""

    def __init__(self, field: str, problem: str, *, limit: int | None = None) -> None:
        super().__init__(f"event.{field} {problem}")
        self.field = field
        self.limit = limit


class PayloadError(EventError):
    """The payload cannot be encoded. `path` says where inside it, as in `$.items[2].price`."""

    def __init__(self, path: str, problem: str, *, limit: int | None = None) -> None:
        super().__init__("payload", f"at {path}: {problem}", limit=limit)
        self.path = path


class CausationError(EventError):
    """The causation path would bite its own tail, or is too long: a loop between modules."""

    def __init__(self, problem: str, *, limit: int | None = None) -> None:
        super().__init__("causation_path", problem, limit=limit)


class DuplicateEventError(PostroomError):
    """An event with this id is in the outbox already; nothing was added for it.

    The caller's transaction is still usable. `ids` holds the candidates: the one id, or all ids of
    an `add_many` when the database does not say which of them was there. `certain` is False where
    the database user may not look: then it may also be that a number was taken, see
    `NumberTakenError`.
    """

    def __init__(self, ids: Iterable[str], *, certain: bool = True) -> None:
        self.ids = tuple(ids)
        self.certain = certain
        which = "an event with id" if len(self.ids) == 1 else "at least one event of the ids"
        if certain:
            told = (
                f"{which} {_shown(self.ids)} is in the outbox already. If this is a repeat of the "
                "same work, treat it as done; otherwise leave out `id` and let postroom make a new "
                "one."
            )
        else:
            told = (
                f"{which} {_shown(self.ids)} was not added. Either it is in the outbox already, or "
                "the sequence of the outbox is behind its table. This database user may not look "
                "(it would need SELECT on the column id): find out with `postroom show` and "
                "`postroom doctor` before you treat it as done."
            )
        super().__init__(told)


def _shown(ids: tuple[str, ...]) -> str:
    return ", ".join(repr(i) for i in ids[:3]) + (" …" if len(ids) > 3 else "")


class TransactionError(PostroomError):
    """The caller's transaction cannot carry an event."""


class AutocommitError(TransactionError):
    """The statement would commit by itself, so the event would not share the caller's commit."""


class TransactionEndedError(TransactionError):
    """The transaction ended before its block did: somebody committed it or rolled it back."""


class UnsupportedConnectionError(TransactionError, TypeError):
    """The object handed to `add` or `accept` is none that postroom can write through."""

    def __init__(self, given: object, accepted: Iterable[str], hint: str = "") -> None:
        kind = type(given)
        self.accepted = tuple(accepted)
        super().__init__(
            f"cannot write through {kind.__module__}.{kind.__qualname__}; accepted are: "
            + ", ".join(self.accepted)
            + (f". {hint}" if hint else "")
        )


class ConfigError(PostroomError, ValueError):
    """A setting, URL or option that makes no sense; the message says what would."""


class MissingExtraError(ConfigError):
    """A driver is not installed."""

    def __init__(self, extra: str, module: str) -> None:
        self.extra = extra
        super().__init__(f"{module} is not installed: pip install 'postroom[{extra}]'")


class SchemaError(PostroomError):
    """The tables are missing or older than this code needs, or newer than it knows."""


class StoreError(PostroomError):
    """The database refused or could not be asked."""


class StoreRetryableError(StoreError):
    """Nothing was changed (a deadlock, a busy database); the same call may be repeated."""


class StoreLockedError(StoreRetryableError):
    """Nothing was changed: another transaction has locked rows that are needed."""


class StoreRefusedError(StoreError):
    """Nothing was changed: the database refuses these values (a number out of range, a violated
    constraint, a trigger that raises). The same call would be refused again.
    """


class NumberTakenError(StoreError):
    """The number for an event is another one's: the sequence of the outbox is behind its table.

    So it is after a data-only restore, the promotion of a logical replica, or setval. None of
    `ids` was added. The caller's transaction is usable, but must not be committed without them.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = tuple(ids)
        super().__init__(
            f"not added: {_shown(self.ids)}. The outbox gave a number that another event has: its "
            "sequence is behind its table, as after a restore. Roll back, repair it with SELECT "
            "setval(pg_get_serial_sequence('postroom_outbox', 'seq'), (SELECT max(seq) FROM "
            "postroom_outbox)), and repeat the work"
        )


class StoreUnknownError(StoreError):
    """The connection went away in the middle: whether the change happened is unknown."""


class NotFoundError(PostroomError, LookupError):
    """No event with that id."""


class Retry(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a handler: try this event again, `after` a given time instead of the backoff."""

    def __init__(self, reason: str = "", *, after: timedelta | float | None = None) -> None:
        super().__init__(reason)
        self.after_seconds = after.total_seconds() if isinstance(after, timedelta) else after


class Reject(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a handler: this event can never be handled; make it a dead letter now."""


def shown(value: object) -> str:
    """Return a value for an error's message: in one short piece, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a whole number of too many digits, or an object of a user
        return f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
