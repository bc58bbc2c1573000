"""Selection of events by ids or filters, and paging through them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import click

from postroom.cli.options import instant, reader
from postroom.errors import ConfigError, NotFoundError
from postroom.event import MAX_STREAM_BYTES
from postroom.lookup import Filter
from postroom.model.dead_letters import fingerprint
from postroom.model.text import check_setting
from postroom.record import Record, State
from postroom.store import Store

F = TypeVar("F", bound=Callable[..., Any])

PAGE = 200  # records include payloads, which may be large
MAX_PAGE = 5_000  # with small payloads, larger pages are much cheaper
PAGE_BYTES = 8_000_000

_OPTIONS = (
    click.option("--stream", help="Only this stream."),
    click.option("--type", "event_type", help="Only events of this type."),
    click.option("--topic", help="Only events for this topic."),
    click.option("--key", help="Only events of this key."),
    click.option("--error", metavar="TEXT", help="Only events whose last error contains this."),
    click.option("--group", metavar="ID", help="Only dead letters of this group (see `dead`)."),
    click.option(
        "--since",
        callback=reader(instant),
        metavar="TIME",
        help="Only events created at or after: 2h (ago), 2026-05-01.",
    ),
    click.option(
        "--until",
        callback=reader(instant),
        metavar="TIME",
        help="Only events created before: 2h (ago), 2026-05-01.",
    ),
    click.option(
        "--after", type=int, metavar="SEQ", help="Only events after this seq, for the next page."
    ),
)


@dataclass(frozen=True)
class Selection:
    """A filter as given on the command line."""

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
            "correlation_id": "correlation", "causation_id": "causation",
        }  # fmt: skip
        given = {names.get(n, n): v for n, v in self.filter._asdict().items() if n != "limit" and v}
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


def selection_options(command: F) -> F:
    """Add the filter options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_selection(state: State | None, given: dict[str, Any]) -> Selection:
    """Return the selection of the options; raises ConfigError if they contradict each other."""
    since, until, group = given["since"], given["until"], given["group"]
    if since is not None and until is not None and since >= until:
        raise ConfigError("--since must be before --until: no event can match")
    if group is not None and state not in (None, State.DEAD):
        raise ConfigError(
            f"--group selects dead letters and --state {state} excludes them; remove one of the two"
        )
    if given["stream"] is not None:
        check_setting("stream", given["stream"], MAX_STREAM_BYTES)
    wanted = Filter(
        stream=given["stream"],
        state=State.DEAD if group is not None else state,
        type=given["event_type"],
        topic=given["topic"],
        key=given["key"],
        after_seq=given["after"] or 0,
        error=given["error"],
        from_us=since,
        before_us=until,
        correlation_id=given.get("correlation"),
        causation_id=given.get("causation"),
    )
    return Selection(wanted, group, given["after"] == 0)


def require_one(ids: Sequence[str], selection: Selection, *, everything: bool, verb: str) -> None:
    """Raise UsageError unless exactly one of ids, filters or --all selects the events."""
    ways = [bool(ids), selection.is_narrow, everything]
    if not any(ways):
        raise click.UsageError(f"No events selected: give ids, filters, or --all to {verb} all.")
    if ids and (selection.is_narrow or everything):
        raise click.UsageError("Give ids or filters, not both.")


async def walk(store: Store, selection: Selection) -> AsyncIterator[Record]:
    """Yield the selected events in the order they were written, reading page by page."""
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
        wanted = wanted._replace(after_seq=page[-1].seq, limit=limit)


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
