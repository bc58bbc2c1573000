"""Selection of events by ids or filters, and paging through them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from postroom.errors import NotFoundError
from postroom.lookup import Filter
from postroom.model.dead_letters import fingerprint
from postroom.record import Record, State
from postroom.store import Store

PAGE = 200  # records include payloads, which may be large
MAX_PAGE = 5_000  # with small payloads, larger pages are much cheaper
PAGE_BYTES = 8_000_000


@dataclass(frozen=True)
class Selection:
    """A filter as an operator gives it."""

    filter: Filter
    group: str | None = None
    from_start: bool = False  # --after 0

    def matches(self, record: Record) -> bool:
        """Return whether a record passes the filters that the store cannot apply."""
        return self.group is None or fingerprint(record.type, record.last_error) == self.group

    def narrowed(self, **fields: Any) -> Selection:
        """Return the selection with these fields of its filter set."""
        return replace(self, filter=self.filter._replace(**fields))

    @property
    def is_narrow(self) -> bool:
        """Whether it filters by more than the state."""
        return self.group is not None or self.filter._replace(state=None) != Filter()

    def __str__(self) -> str:
        names = {
            "from_us": "since", "before_us": "until", "after_seq": "after",
            "settled_before_us": "ended before",
            "correlation_id": "correlation", "causation_id": "causation", "until_seq": "up to",
        }  # fmt: skip
        given = {
            names.get(n, n): v
            for n, v in self.filter._asdict().items()
            if n not in ("limit", "newest") and v
        }
        if self.group:
            given["group"] = self.group
        return " ".join(f"{name}={value}" for name, value in given.items())


class Chosen(NamedTuple):
    """The facts kept of a selected event until its step runs."""

    id: str
    seq: int
    key_hash: bytes
    size: int
    keyed: bool
    is_numbered: bool = False  # strict order: consumers wait for its number


async def walk(store: Store, selection: Selection) -> AsyncIterator[Record]:
    """Yield the selected events in the order of the filter, reading page by page."""
    wanted = selection.filter._replace(limit=PAGE)
    while True:
        page = await store.find(wanted)
        for record in page:
            if selection.matches(record):
                yield record
        if len(page) < wanted.limit:
            return
        size = max(1, sum(record.size for record in page) // len(page))
        limit = max(PAGE, min(MAX_PAGE, wanted.limit * 4, PAGE_BYTES // size))
        last, wanted = page[-1].seq, wanted._replace(limit=limit)
        if wanted.newest:
            wanted = wanted._replace(until_seq=last - 1)
        else:
            wanted = wanted._replace(after_seq=last)


async def fetch(store: Store, ids: Sequence[str], states: Sequence[State]) -> list[Record]:
    """Return events by id; raises NotFoundError if one is unknown or in another state."""
    found = []
    for event_id in dict.fromkeys(ids):
        record = await store.get(event_id)
        if record is None:
            raise NotFoundError(f"no event with id {event_id!r}; see: postroom list")
        if State(record.state) not in states:
            names = " or ".join(str(state) for state in states)
            raise NotFoundError(f"event {event_id!r} is {record.state}; it must be {names}")
        found.append(record)
    return sorted(found, key=lambda record: record.seq)


async def replaced(store: Store, chosen: Sequence[Chosen]) -> dict[str, str]:
    """Return the dead letters that were edited, each with the id under which it was sent."""
    found: dict[str, str] = {}
    for at in range(0, len(chosen), PAGE):
        there = await store.look_up([event.id for event in chosen[at : at + PAGE]])
        found |= {name: one.replaced_by for name, one in there.items() if one.replaced_by}
    return found


def remember(record: Record) -> Chosen:
    """Return the facts of a record that a later step needs, without its payload."""
    keyed, numbered = record.key is not None, bool(record.kseq)
    return Chosen(record.id, record.seq, record.key_hash, record.size, keyed, numbered)
