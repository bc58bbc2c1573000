"""Search: the operators' questions to a store that an index answers, and the bounds of all others.

A search never scans a whole table. Either an index leads to the records, or the caller bounds the
rows that are looked at: `position` finds where a time window begins, `reach` how far a number of
rows extends, and `find` stops there (`until_seq`).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args, get_type_hints

from postroom.errors import ConfigError
from postroom.lookup import Filter
from postroom.model.unreadable_rows import decode
from postroom.record import State

Column = Literal["key", "correlation_id", "causation_id"]

CORRELATION = "correlation"
"""The optional index: one of correlation ids and one of causation ids."""
OPTIONAL: Mapping[str, tuple[Column, ...]] = {CORRELATION: ("correlation_id", "causation_id")}
INDEX_OF: Mapping[Column, str] = {
    "key": "key",
    "correlation_id": "correlation",
    "causation_id": "causation",
}
"""Column → the end of its index's name."""
OUT_OF_ORDER_US = 3_600_000_000
"""Times of writing may be this much out of the order of `seq`: long transactions, other clocks."""

_FEW = (State.PROCESSING, State.FAILED, State.DEAD, State.EXPIRED, State.CANCELLED)


class Reach(NamedTuple):
    """A number of rows, and the position of the last one (0 if there are none)."""

    rows: int
    seq: int


class Outline(NamedTuple):
    """An event without its payload and headers. Times are microseconds since 1970."""

    seq: int
    id: str
    stream: str
    type: str
    topic: str
    key: str | None
    aggregate_type: str | None
    correlation_id: str | None
    causation_id: str | None
    state: str
    stage: str
    attempts: int
    created_us: int
    next_attempt_us: int | None
    settled_us: int | None
    last_error: str | None


class Search(Protocol):
    """The part of a store that answers by index, or within bounds."""

    async def indexes(self) -> frozenset[str]:
        """Return the names of the optional indexes that are complete."""

    async def set_index(self, name: str, *, present: bool) -> bool:
        """Create or drop an optional index; returns whether anything changed.

        Idempotent; before or after `open`. Writers go on meanwhile, except on SQLite.
        """

    async def reach(self, wanted: Filter, rows: int) -> Reach:
        """Return how far `find` gets in this number of rows, counted along the index it uses and
        in its direction: `seq` is the highest position, with `newest` the lowest one.

        Fewer than `rows` means that there are no more.
        """

    async def position(self, at_us: int) -> int:
        """Return a position before which no event was written at this time or later.

        By a binary search. Events more than OUT_OF_ORDER_US out of the order of time may be before.
        """

    async def outline(self, by: Column, value: str, limit: int) -> list[Outline]:
        """Return the events of one key, newest first, or of one correlation or causation id, oldest
        first, at most `limit`. Raises ConfigError without an index.
        """

    async def ids(self, beginning: str, limit: int) -> list[str]:
        """Return the ids of events that begin with this text, in order, at most `limit`."""

    async def outlines(self, ids: Sequence[str]) -> list[Outline]:
        """Return the events with these ids, in `seq` order; unknown ids are left out."""

    async def newest(self, limit: int) -> list[Outline]:
        """Return the last events that were written, in any stream, newest first."""


# -- for stores -------------------------------------------------------------------------------
def walk_by(
    wanted: Filter, indexes: Collection[str], *, bounded: bool = False
) -> Column | Literal["state"] | None:
    """Return the index by which a store finds these records; None: in the order of `seq`.

    Raises ConfigError if the search is by correlation or causation id, and nothing bounds it.
    """
    named: tuple[Column, ...] = ("causation_id", "correlation_id")
    asked = [column for column in named if getattr(wanted, column) is not None]
    if asked and CORRELATION in indexes:
        return asked[0]
    if wanted.key is not None:
        return "key"
    if wanted.state in _FEW:
        return "state"
    if asked and wanted.until_seq is None and not bounded:
        raise no_index(asked[0])
    return None


def beginning_with(beginning: str, ids: Iterable[Any]) -> list[str]:
    """Return the ids that begin with a text; rows that were edited may have others."""
    return [one for one in ids if isinstance(one, str) and one.startswith(beginning)]


def is_caused(wanted: Filter) -> bool:
    """Return whether a filter is by correlation or causation id."""
    return wanted.correlation_id is not None or wanted.causation_id is not None


def no_index(column: str) -> ConfigError:
    """Return the error of a search that only an optional index can bound."""
    return ConfigError(
        f"this store has no index of {column}, and the search would read every event. Create it: "
        "postroom migrate --index correlation; or bound the search by time"
    )


def check_index(name: str) -> None:
    """Raise ConfigError for an index that is not optional."""
    if name not in OPTIONAL:
        raise ConfigError(f"there is no optional index {name!r}; known: {', '.join(OPTIONAL)}")


Probe = tuple[int, int, int]
"""An event's position, its time of writing, and the highest position."""


def bisect(at_us: int) -> Generator[int, Probe | None, int]:
    """Search a position by time. Yields a position, receives the first event at or after it, and
    returns the result.
    """
    at_us -= OUT_OF_ORDER_US
    first = yield 0
    if first is None or first[1] >= at_us:
        return 0
    low, high = first[0] + 1, first[2] + 1
    while low < high:
        middle = (low + high) // 2
        found = yield middle
        if found is None or found[1] >= at_us:
            high = middle
        else:
            low = found[0] + 1
    return low


_TYPES = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(Outline).items()}


def to_outline(row: Sequence[Any]) -> Outline:
    """Return a row as an outline; values of other types are replaced: the row was edited."""
    return Outline(
        *(_usable(value, kinds) for value, kinds in zip(row, _TYPES.values(), strict=True))
    )


def _usable(value: Any, kinds: tuple[type, ...]) -> Any:
    if str in kinds and isinstance(value, (bytes, bytearray)):
        return decode(bytes(value))
    if type(value) in kinds:
        return value
    if value is not None and str in kinds:
        return str(value)
    return None if type(None) in kinds else kinds[0]()
