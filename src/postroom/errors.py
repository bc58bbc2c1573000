"""All errors that postroom raises.

PostroomError
├── EventError(ValueError)            an invalid event; names the field and the limit
│   ├── PayloadError                  the payload cannot be encoded; names the path inside it
│   └── CausationError                a causation path that contains a cycle or is too long
├── DuplicateEventError               an event with this id is already in the outbox
├── TransactionError                  the caller's transaction cannot carry an event
│   ├── AutocommitError               the connection is in autocommit mode
│   ├── TransactionEndedError         the transaction ended before its block
│   └── UnsupportedConnectionError(TypeError)   an object that postroom cannot write through
├── ConfigError(ValueError)           an invalid setting, URL or option
│   └── MissingExtraError             a driver is not installed; names the extra
├── SchemaError                       the tables are missing, or newer than this code
├── StoreError                        the database is unreachable or refused a statement
│   ├── StoreRetryableError           nothing was changed; the call can be retried
│   │   └── StoreLockedError          another transaction holds the needed locks
│   ├── StoreRefusedError             nothing was changed: the database rejects these values
│   ├── NumberTakenError              the outbox sequence is behind its table
│   └── StoreUnknownError             the connection was lost: the outcome is unknown
├── NotDeliveredError                 events that were waited for are not done
├── PausedError                       a drain of a stream that an operator has paused
├── ReplacedError                     an edited copy of the dead letter was sent instead of it
└── NotFoundError(LookupError)        no event with that id

`Retry` and `Reject` are signals, not errors: a handler raises them to decide what happens to its
event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from postroom.model.durations import Seconds

_SHOWN_CHARS = 100
_SHOWN_EVENTS = 10


class PostroomError(Exception):
    """Base class of all errors that postroom raises. Errors can be pickled with attributes."""

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
    """An invalid event. `field` is the field's name, `limit` the limit it exceeds, if any."""

    def __init__(self, field: str, problem: str, *, limit: int | None = None) -> None:
        super().__init__(f"event.{field} {problem}")
        self.field = field
        self.limit = limit


class PayloadError(EventError):
    """The payload cannot be encoded. `path` is the place inside it, such as `$.items[2].price`."""

    def __init__(self, path: str, problem: str, *, limit: int | None = None) -> None:
        super().__init__("payload", f"at {path}: {problem}", limit=limit)
        self.path = path


class CausationError(EventError):
    """The causation path contains a cycle or is too long: modules cause each other's events."""

    def __init__(self, problem: str, *, limit: int | None = None) -> None:
        super().__init__("causation_path", problem, limit=limit)


class DuplicateEventError(PostroomError):
    """An event with this id is already in the outbox; it was not added again.

    The caller's transaction is still usable. `ids` holds the candidates: the one id, or all ids of
    an `add_many` if the database does not report which of them exists. `certain` is False if the
    database user has no permission to check; the cause may then also be a `NumberTakenError`.
    """

    def __init__(self, ids: Iterable[str], *, certain: bool = True) -> None:
        self.ids = tuple(ids)
        self.certain = certain
        which = "an event with id" if len(self.ids) == 1 else "at least one event of the ids"
        if certain:
            message = (
                f"{which} {_shown(self.ids)} is already in the outbox. If this is a retry of the "
                "same work, treat it as done; otherwise omit `id` to let postroom create one."
            )
        else:
            message = (
                f"{which} {_shown(self.ids)} was not added. Either it is already in the outbox, or "
                "the outbox sequence is behind its table. This database user cannot check (it "
                "needs SELECT on the column id): run `postroom show` and `postroom doctor` before "
                "you treat it as done."
            )
        super().__init__(message)


def _shown(ids: tuple[str, ...]) -> str:
    return ", ".join(repr(i) for i in ids[:3]) + (" …" if len(ids) > 3 else "")


class TransactionError(PostroomError):
    """The caller's transaction cannot carry an event."""


class AutocommitError(TransactionError):
    """The connection is in autocommit mode: the event would not share the caller's commit."""


class TransactionEndedError(TransactionError):
    """The transaction was committed or rolled back before its block ended."""


class UnsupportedConnectionError(TransactionError, TypeError):
    """The object passed to `add` or `accept` is not a connection that postroom supports."""

    def __init__(self, given: object, accepted: Iterable[str], hint: str = "") -> None:
        kind = type(given)
        self.accepted = tuple(accepted)
        super().__init__(
            f"cannot write through {kind.__module__}.{kind.__qualname__}; supported: "
            + ", ".join(self.accepted)
            + (f". {hint}" if hint else "")
        )


class ConfigError(PostroomError, ValueError):
    """An invalid setting, URL or option; the message names the valid values."""


class MissingExtraError(ConfigError):
    """A driver is not installed."""

    def __init__(self, extra: str, module: str) -> None:
        self.extra = extra
        super().__init__(f"{module} is not installed: pip install 'postroom[{extra}]'")


class SchemaError(PostroomError):
    """The tables are missing or older than this code needs, or newer than it knows."""


class StoreError(PostroomError):
    """The database is unreachable or refused a statement."""


class StoreRetryableError(StoreError):
    """Nothing was changed (deadlock, busy or unreachable database); the call can be retried."""


class StoreLockedError(StoreRetryableError):
    """Nothing was changed: another transaction holds locks on the needed rows."""


class StoreRefusedError(StoreError):
    """Nothing was changed: the database rejects these values (a number out of range, a violated
    constraint, a trigger that raises). A retry would fail again.
    """


class NumberTakenError(StoreError):
    """The next `seq` belongs to another event: the outbox sequence is behind its table.

    Causes are a data-only restore, the promotion of a logical replica, or setval. None of `ids`
    was added. The caller's transaction is usable but must not be committed without them.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = tuple(ids)
        super().__init__(
            f"not added: {_shown(self.ids)}. The next seq belongs to another event: the outbox "
            "sequence is behind its table, as after a restore. Roll back, repair it with SELECT "
            "setval(pg_get_serial_sequence('postroom_outbox', 'seq'), (SELECT max(seq) FROM "
            "postroom_outbox)), and retry the work"
        )


class StoreUnknownError(StoreError):
    """The connection was lost during the call: it may or may not have taken effect.

    Read what is in the database before the call is repeated, or repeat one that is idempotent.
    """


class PausedError(PostroomError):
    """A drain of a stream that an operator has paused. `kind` and `name` say what is paused."""

    def __init__(self, kind: str, name: str, command: str) -> None:
        super().__init__(f"the {kind} {name} is paused: nothing is sent; resume it with: {command}")
        self.kind = kind
        self.name = name


class NotDeliveredError(PostroomError):
    """Events that were waited for are not done.

    states    id → state, of each event that is not done: dead, expired, cancelled, or the state of
              an event that still waits (empty: the store was unreachable)
    waiting   the ids of events that were still waiting at the timeout
    """

    def __init__(self, states: Mapping[str, str], *, waiting: Iterable[str] = ()) -> None:
        self.states = dict(states)
        self.waiting = tuple(waiting)
        shown = [f"{name} is {state or 'unknown'}" for name, state in self.states.items()]
        more = f" and {len(shown) - _SHOWN_EVENTS} more" if len(shown) > _SHOWN_EVENTS else ""
        late = f" ({len(self.waiting)} still waiting at the timeout)" if self.waiting else ""
        super().__init__(
            f"{len(shown)} events are not done{late}: {', '.join(shown[:_SHOWN_EVENTS])}{more}. "
            "See: postroom show ID, postroom status"
        )


class ReplacedError(PostroomError):
    """A dead letter was edited: `replaced_by` is the id of the event that was sent instead."""

    def __init__(self, event_id: str, replaced_by: str) -> None:
        super().__init__(
            f"event {event_id!r} was edited and sent as {replaced_by!r}: it stays a dead letter. "
            f"See: postroom show {replaced_by}"
        )
        self.event_id = event_id
        self.replaced_by = replaced_by


class NotFoundError(PostroomError, LookupError):
    """No event with that id."""


class Retry(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a handler: retry this event, `after` the given time instead of the backoff."""

    def __init__(self, reason: str = "", *, after: Seconds | None = None) -> None:
        super().__init__(reason)
        # Not converted: a wrong value must not raise here, in place of the signal.
        self.after_seconds = after.total_seconds() if isinstance(after, timedelta) else after


class Reject(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a handler: this event can never be handled and becomes a dead letter now."""


def shown(value: object) -> str:
    """Return the repr of a value, truncated, for an error's message."""
    try:
        text = repr(value)
    except Exception:  # an integer with too many digits, or a user's __repr__ that raises
        return f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
