"""The request and the position of a replay, as they are stored: JSON, checked when it is read."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args, get_type_hints

from postroom.errors import ConfigError
from postroom.lookup import Filter
from postroom.model.dead_letters import fingerprint
from postroom.operation import REPLAY, NewOperation, Operation, fingerprint_of
from postroom.record import Record, State

CANARY = (1, 2, 5, 20, 100, 500)
"""The sizes of the groups of a canary; the last one is repeated."""

_REPLAYED = (State.DEAD, State.DONE)
_NUMBERS = {
    name for name, kind in get_type_hints(Filter).items() if kind is int or int in get_args(kind)
}
_NOT_STORED = ("limit", "newest")  # of a filter
_FIELDS = ("filter", "group", "new_id", "limit", "per_second", "canary")
_MAX_WATCHED = max(CANARY)


class ReplayRequest(NamedTuple):
    """Which events to send again, and how fast.

    group       only dead letters of this group, as `postroom dead` shows it
    limit       the number of events to replay; None: all
    per_second  the greatest rate; None: as fast as possible
    canary      in groups of growing size, each after the one before has been sent; stops at the
                first failures
    """

    filter: Filter
    group: str | None = None
    new_id: bool = False
    limit: int | None = None
    per_second: float | None = None
    canary: bool = False

    def matches(self, record: Record) -> bool:
        """Return whether a record passes the filter that the store cannot apply."""
        return self.group is None or fingerprint(record.type, record.last_error) == self.group

    @property
    def selection(self) -> dict[str, Any]:
        """The selected events: unfinished requests with the same selection are one operation."""
        unset = Filter()._asdict()
        given = {
            name: str(value) if isinstance(value, State) else value
            for name, value in self.filter._asdict().items()
            if name not in _NOT_STORED and value != unset[name]
        }
        for name, value in given.items():
            if not isinstance(value, str | int):
                raise ConfigError(f"an operation cannot store a filter by {name}; give ids")
        return {"filter": given, "group": self.group, "new_id": self.new_id}

    def new_operation(self, total: int | None, about: str) -> NewOperation:
        pace = {"limit": self.limit, "per_second": self.per_second, "canary": self.canary}
        text = json.dumps({**self.selection, **pace})
        return NewOperation(REPLAY, text, fingerprint_of(REPLAY, self.selection), total, about)


class Position(NamedTuple):
    """Where to continue.

    seq       events up to this number have been handled
    group     the number of groups of the canary that have been sent
    watched   the ids of the last one, which must be finished before the next
    """

    seq: int
    group: int = 0
    watched: tuple[str, ...] = ()

    def text(self) -> str:
        return json.dumps({**self._asdict(), "watched": list(self.watched)})


def read_request(operation: Operation) -> ReplayRequest:
    """Return the request of a stored operation; raises ConfigError if this code cannot run it."""
    if operation.kind != REPLAY:
        raise ConfigError(f"this version knows no operation of the kind {operation.kind!r}")
    stored = _object("request", operation.request, _FIELDS)
    given = stored.get("filter")
    if not isinstance(given, dict):
        raise ConfigError("its request is damaged: it has no filter")
    for name, value in given.items():
        expected = int if name in _NUMBERS else str
        unknown = name not in Filter._fields or name in _NOT_STORED
        if unknown or type(value) is not expected:
            raise ConfigError(f"its request is damaged: it filters by {name!r}")
    state = given.get("state")
    if state not in _REPLAYED:
        raise ConfigError(f"its request is damaged: {state!r} events cannot be replayed")
    wanted = Filter(**{**given, "state": State(state)})
    limit, rate, group = stored.get("limit"), stored.get("per_second"), stored.get("group")
    sound = (
        (limit is None or (type(limit) is int and limit > 0))
        and (rate is None or (type(rate) in (int, float) and 0 < rate < math.inf))
        and (group is None or isinstance(group, str))
        and all(type(stored.get(name, False)) is bool for name in ("new_id", "canary"))
    )
    if not sound:
        raise ConfigError("its request is damaged: a limit, a rate or an option is wrong")
    new_id, canary = stored.get("new_id", False), stored.get("canary", False)
    return ReplayRequest(wanted, group, new_id, limit, rate, canary)


def read_position(operation: Operation, request: ReplayRequest) -> Position:
    """Return where to continue; raises ConfigError if it is damaged."""
    if operation.position is None:
        return Position(request.filter.after_seq)
    stored = _object("position", operation.position, Position._fields)
    seq, group, watched = (stored.get(name) for name in Position._fields)
    if type(seq) is not int or type(group) is not int or min(seq, group) < 0:
        raise ConfigError("its position is damaged: it has no number to continue at")
    if not _is_list_of_ids(watched):
        raise ConfigError("its position is damaged: it does not say which events it waits for")
    assert isinstance(watched, list)
    return Position(seq, group, tuple(watched))


def _is_list_of_ids(found: object) -> bool:
    return (
        isinstance(found, list)
        and len(found) <= _MAX_WATCHED
        and all(isinstance(one, str) for one in found)
    )


def _object(what: str, text: str, fields: Sequence[str]) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"its {what} is damaged: it is not JSON") from error
    if not isinstance(found, dict) or set(found) - set(fields):
        raise ConfigError(f"its {what} is damaged, or of a newer version")
    return found
