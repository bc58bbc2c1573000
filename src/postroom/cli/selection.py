"""Selection of events by ids or filters, and paging through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from postroom.admin.selection import Selection
from postroom.admin.texts import one_line
from postroom.admin.values import instant
from postroom.cli.options import reader
from postroom.errors import ConfigError
from postroom.event import MAX_STREAM_BYTES
from postroom.lookup import Filter
from postroom.model.text import check_setting
from postroom.record import State
from postroom.store import Store

F = TypeVar("F", bound=Callable[..., Any])

SHORTEST_BEGINNING = 4  # characters of an id
MAX_CANDIDATES = 10

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


async def whole_id(store: Store, given: str) -> str:
    """Return the id of the event with this id, or of the only one whose id begins with it.

    An unknown id is returned as it is. Raises ConfigError if there are several, after it has
    printed them.
    """
    if len(given) < SHORTEST_BEGINNING or await store.look_up([given]):
        return given
    return only_one(given, await store.search.ids(given, MAX_CANDIDATES + 1)) or given


def only_one(given: str, found: Sequence[str]) -> str | None:
    """Return the only id that begins with this text, and print it; None if there is none."""
    if len(found) > 1:
        for one in found[:MAX_CANDIDATES]:
            click.echo(f"  {one_line(one)}", err=True)
        is_all = len(found) <= MAX_CANDIDATES
        raise ConfigError(
            f"{given!r} is the beginning of {len(found) if is_all else 'many'} ids; give more of it"
        )
    if found:
        click.echo(f"event {one_line(found[0])}", err=True)
    return found[0] if found else None
