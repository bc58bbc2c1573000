"""Which events a command is about: ids, or filters, and the walk over them page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import click

from postroom.cli.options import instant, reader
from postroom.errors import ConfigError, NotFoundError
from postroom.event import MAX_STREAM_BYTES, check_text
from postroom.model.dead_letters import fingerprint
from postroom.record import Record, State
from postroom.store import Filter, Store

F = TypeVar("F", bound=Callable[..., Any])

PAGE = 200  # records are read whole: their payloads may be large …
MAX_PAGE = 5_000  # … or small: then fewer, longer looks are much cheaper
PAGE_BYTES = 8_000_000

_OPTIONS = (
    click.option("--stream", help="Only this stream."),
    click.option("--type", "event_type", help="Only events of this type."),
    click.option("--topic", help="Only events for this topic."),
    click.option("--key", help="Only events of this key."),
    click.option("--error", metavar="TEXT", help="Only those with this text in their last error."),
    click.option("--group", metavar="ID", help="Only dead letters of this group of `dead`."),
    click.option(
        "--since", callback=reader(instant), metavar="TIME", help="Created then or later: 2h, 7d, …"
    ),
    click.option(
        "--until", callback=reader(instant), metavar="TIME", help="Created before: 2026-05-01."
    ),
    click.option(
        "--after", type=int, metavar="SEQ", help="Only events after this place: the next page."
    ),
)


@dataclass(frozen=True)
class Selection:
    """A filter as people give it."""

    filter: Filter
    group: str | None = None

    def matches(self, record: Record) -> bool:
        """Say whether a record is meant, as far as the store could not tell."""
        return self.group is None or fingerprint(record.type, record.last_error) == self.group

    @property
    def is_narrow(self) -> bool:
        """Whether it says anything beside the state."""
        return self.group is not None or self.filter._replace(state=None) != Filter()

    def __str__(self) -> str:
        names = {"from_us": "since", "before_us": "until", "after_seq": "after"}
        given = {names.get(n, n): v for n, v in self.filter._asdict().items() if n != "limit" and v}
        if self.group:
            given["group"] = self.group
        return " ".join(f"{name}={value}" for name, value in given.items())


class Chosen(NamedTuple):
    """What is kept in mind of an event until it is its turn."""

    id: str
    seq: int
    key_hash: bytes
    size: int
    keyed: bool


def selection_options(command: F) -> F:
    """Give a command the options of a filter."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_selection(state: State | None, given: dict[str, Any]) -> Selection:
    """Return what the options say; raises ConfigError where they contradict each other."""
    since, until, group = given["since"], given["until"], given["group"]
    if since is not None and until is not None and since >= until:
        raise ConfigError("--since is not before --until: no event can match")
    if group is not None and state not in (None, State.DEAD):
        raise ConfigError(f"--group is of dead letters, and --state says {state}: none can match")
    if given["stream"] is not None:
        check_text("stream", given["stream"], MAX_STREAM_BYTES)
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
    )
    return Selection(wanted, group)


def require_one(ids: Sequence[str], selection: Selection, *, everything: bool, verb: str) -> None:
    """Raise unless it is clear which events are meant: ids, filters, or all."""
    ways = [bool(ids), selection.is_narrow, everything]
    if not any(ways):
        raise click.UsageError(f"Which events? Give ids, filters, or --all to {verb} them all.")
    if ids and (selection.is_narrow or everything):
        raise click.UsageError("Give ids or filters, not both.")


async def walk(store: Store, selection: Selection) -> AsyncIterator[Record]:
    """Yield what is meant in the order of writing, a page at a time."""
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
    """Return the named events; raises NotFoundError for an unknown one, or one in another state."""
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


def remember(record: Record) -> Chosen:
    """Return what a later step needs of a record: never its payload."""
    return Chosen(record.id, record.seq, record.key_hash, record.size, record.key is not None)
