"""`postroom list`: events, one line each."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click

from postroom.admin.bounded_search import SCAN_LIMIT, BoundedSearch
from postroom.admin.event_facts import summary
from postroom.admin.texts import cut, instant, many, one_line
from postroom.cli.options import json_option, opened, reader, shared_store, store_option
from postroom.cli.selection import read_selection, selection_options
from postroom.model.conditions import Condition, Header, read_condition, read_header
from postroom.model.url import Url
from postroom.record import Record, State

_ROOM_FOR_KEYS = 30
_STATES = [str(state) for state in State]


def _each(convert: Callable[[str], Any]) -> Callable[..., list[Any]]:
    read = reader(convert)
    return lambda ctx, param, values: [read(ctx, param, value) for value in values]


@click.command(name="list")
@store_option
@click.option("--state", type=click.Choice(_STATES), help="Only events in this state.")
@selection_options
@click.option("--correlation", metavar="ID", help="Only events with this correlation id.")
@click.option("--causation", metavar="ID", help="Only events that this event has caused.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_each(read_header),
    metavar="NAME=VALUE",
    help="Only events with this header. Repeatable.",
)
@click.option(
    "--payload",
    "conditions",
    multiple=True,
    callback=_each(read_condition),
    metavar="CONDITION",
    help="Only events whose JSON payload matches, for example 'order.total>100'. Repeatable.",
)
@click.option(
    "--scan-limit",
    type=click.IntRange(min=1),
    default=SCAN_LIMIT,
    show_default=True,
    help="Maximum events to look at.",
)
@click.option("--before", type=int, metavar="SEQ", help="Only events before this seq.")
@click.option("--oldest", is_flag=True, help="The oldest first.")
@click.option(
    "--last", type=click.IntRange(min=1), metavar="N",
    help="The newest N events, in the order they were written.",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum events."
)
@json_option
def list_events(
    store: Url,
    state: str | None,
    before: int | None,
    oldest: bool,
    last: int | None,
    limit: int,
    headers: Sequence[Header],
    conditions: Sequence[Condition],
    scan_limit: int,
    as_json: bool,
    **given: Any,
) -> None:
    """List events, the newest first; with --oldest or --after, the oldest first.

    --json prints one object per line, without the payload. If more events match, the last line on
    stderr names the option for the next page.

    A search is bounded. It uses the index of --key, --correlation, --causation, or of a --state
    other than pending and done; any other filter looks at the newest events. If it ends at
    --scan-limit, the last line on stderr names the option to go on. With --oldest, such a filter
    looks at the events of the last 24 hours, unless --since, --until, --after or --state pending
    is given.

    \b
    Examples:
      postroom list --last 20
      postroom list --state dead --since 2h
      postroom list --type order.created --key order-42 --json
      postroom list --state failed --error timeout --limit 500
      postroom list --payload 'order.total>100' --header tenant=acme --since 3d
    """  # noqa: D301 - click knows the sign
    if oldest and last is not None:
        raise click.UsageError("Give --oldest or --last, not both.")
    selection = read_selection(State(state) if state else None, given)
    newest = last is not None or not (oldest or given["after"] is not None)
    up_to = None if before is None else before - 1
    search = BoundedSearch(
        selection.narrowed(newest=newest, until_seq=up_to), headers, conditions, scan_limit
    )
    asyncio.run(_list(store, search, last or limit, reverse=last is not None, as_json=as_json))


async def _list(
    url: Url, search: BoundedSearch, limit: int, *, reverse: bool, as_json: bool
) -> None:
    newest = search.selection.filter.newest
    columns = _columns(shutil.get_terminal_size().columns)
    kept: list[str] = []
    shown, last, is_more = 0, 0, False
    async with opened(shared_store(url)) as store:
        async for record in search.records(store):
            is_more = shown == limit
            if is_more:
                break
            if not shown and not as_json:
                click.echo(_row(columns, "state", "id", "type", "key", "tries", "age"))
            text = _as_json(record) if as_json else "\n".join(_lines(record, columns))
            if reverse:
                kept.append(text)
            else:
                click.echo(text)
            shown, last = shown + 1, record.seq
        for text in reversed(kept):
            click.echo(text)
        if is_more:
            option = "--before" if newest else "--after"
            if not reverse:
                click.echo(f"more events match; next page: {option} {last}", err=True)
            return
        end = await search.stopped_at(store)
        for note in search.notes():
            click.echo(note, err=True)
        if end is not None:
            found = many(shown, "event") if shown else "no event"
            way, option = ("down to", "--before") if newest else ("up to", "--after")
            click.echo(
                f"looked at {search.scan_limit:,} events, {way} {instant(end.created_us)}; "
                f"{found} matched\ngo on: {option} {end.seq}",
                err=True,
            )
        elif not shown:
            asked = " ".join([str(search.selection), *map(str, search.headers)])
            asked = " ".join([asked, *map(str, search.conditions)]).strip()
            click.echo(f"no event matches {asked}".rstrip() + f" in {url}", err=True)


def _as_json(record: Record) -> str:
    return json.dumps(summary(record))


def _row(
    columns: Columns, state: str, event_id: str, event_type: str, key: str, tries: str, age: str
) -> str:
    keys = f" {key:<{columns.key}}" if columns.key else ""
    return f"{state:<10} {event_id:<36} {event_type:<{columns.type}}{keys} {tries:>5} {age:>10}"


class Columns(NamedTuple):
    """The widths of the type and the key; 0: the key is in the next line."""

    type: int = 15
    key: int = 0


def _columns(width: int) -> Columns:
    """Return the widths for a terminal. An id always has the columns it needs."""
    rest = width - 66
    return Columns() if rest < _ROOM_FOR_KEYS else Columns(rest // 2, rest - rest // 2)


def _lines(record: Record, columns: Columns) -> list[str]:
    age = max(0.0, (datetime.now(UTC) - record.created_at).total_seconds())
    event_id, key = one_line(record.id), record.key or ""
    rest = (cut(record.type, columns.type), cut(key, columns.key) if columns.key else "",
            str(record.attempts), _short(age))  # fmt: skip
    if len(event_id) <= 36:
        lines = [_row(columns, record.state, event_id, *rest)]
    else:  # a line for the id alone: it is there to be copied
        lines = [f"{record.state:<10} {event_id}", _row(columns, "", "", *rest)]
    if key and not columns.key:
        lines.append(f"           key {cut(key, 65)}")
    if record.last_error and record.state in (State.DEAD, State.FAILED):
        lines.append(f"           {cut(record.last_error, 69)}")
    if record.flaw is not None and record.flaw != record.last_error:
        lines.append(f"           {cut(record.flaw, 69)}")
    return lines


def _short(seconds: float) -> str:
    """Return an age in at most ten columns."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} m"
    return f"{minutes // 1440:,} days"
