"""`postroom status`: event counts, lag, and the relays of each stream."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import zip_longest
from textwrap import wrap

import click

from postroom.admin.stream_status import RelaySeen, StreamSeen, look
from postroom.admin.texts import duration, one_line
from postroom.cli.options import (
    json_option,
    mode_of,
    opened,
    print_json,
    seconds_option,
    shared_store,
    store_option,
)
from postroom.cli.pause import until
from postroom.cli.status_causes import paint
from postroom.cli.status_consumers import Sources, lines_of, with_backlog
from postroom.errors import ConfigError
from postroom.event import DEFAULT_STREAM, INBOX_STREAM_PREFIX, MAX_STREAM_BYTES
from postroom.model.controls import Control
from postroom.model.suggest import unknown
from postroom.model.text import check_setting
from postroom.model.url import Url
from postroom.operation import Operation
from postroom.record import State
from postroom.store import Store
from postroom.telemetry import conditions

_SHORTEST_WATCH = 0.1
_NAME_COLUMNS = 28
_COLUMNS = 80
_RARE = (str(State.EXPIRED), str(State.CANCELLED))  # shown only where there are some


def _read_sources(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[Url, ...]:
    try:
        return tuple(Url.parse(value) for value in values)
    except ConfigError as error:
        raise click.BadParameter(f"{error}.", ctx, param) from error


@click.command()
@store_option
@click.option("--stream", help="Only this stream.  [default: all]")
@click.option(
    "--source",
    "sources",
    multiple=True,
    callback=_read_sources,
    metavar="URL",
    help="Source of a consumer, to show what waits there; repeatable.  [default: [[consumer]]]",
)
@json_option
@seconds_option(
    "--watch",
    "watch_seconds",
    text="Refresh at this interval until Ctrl-C. With --json: one line per refresh.",
)
def status(
    store: Url,
    stream: str | None,
    sources: tuple[Url, ...],
    as_json: bool,
    watch_seconds: float | None,
) -> None:
    """Show event counts, lag, and the relays of each stream; and the consumers.

    \b
    pending      waiting to be sent       failed  waiting for a retry
    processing   a handler is running     dead    not retried; can be replayed
    done         delivered                lag     age of the oldest event due

    \b
    Examples:
      postroom status --store sqlite:///app.db
      postroom status --store sqlite:///app.db --stream main --watch 2
    """  # noqa: D301 - click knows the sign
    if watch_seconds is not None and watch_seconds < _SHORTEST_WATCH:
        raise ConfigError(f"--watch must be at least {_SHORTEST_WATCH} seconds")
    if stream is not None:
        check_setting("stream", stream, MAX_STREAM_BYTES)
    known, mode = Sources(sources), mode_of(click.get_current_context())
    with suppress(ConfigError):  # of a file that this command does not need
        known.configure(mode.configuration, mode.unnamed_file)
    asyncio.run(_show(store, stream, known, as_json, watch_seconds))


async def _show(
    url: Url, stream: str | None, sources: Sources, as_json: bool, watch_seconds: float | None
) -> None:
    redraw = sys.stdout.isatty() and not as_json
    async with opened(shared_store(url)) as store:
        while True:
            seen = [
                await with_backlog(await look(store, name), sources)
                for name in await _streams(store, stream)
            ]
            controls = await store.controls()
            paused = [one for one in controls if one.paused]
            limited = [one for one in controls if one.limited]
            running = await store.operations(unfinished=True)
            at = datetime.now(UTC).isoformat(timespec="seconds")
            if watch_seconds is not None and redraw:
                click.clear()
            if as_json:
                data: dict[str, object] = {
                    "store": str(url),
                    "at": at,
                    "streams": [asdict(s) for s in seen],
                }
                data["paused"] = [_facts(one) for one in paused]
                data["limited"] = [_limits(one) for one in limited]
                data["operations"] = [_progress(one) for one in running]
                print_json(data, lines=watch_seconds is not None)
            else:
                head = [f"{url}  {at}", ""] if watch_seconds is not None else []
                behind = [*_controls(paused, limited), *_operations(running)]
                lines = [*head, *render(seen), *behind]
                click.echo("\n".join(map(paint, lines)))
            if watch_seconds is None:
                return
            await asyncio.sleep(watch_seconds)


async def _streams(store: Store, wanted: str | None) -> list[str]:
    """Return the streams to show. Raises ConfigError for one without events and relays."""
    known = await store.streams()
    if wanted is None:
        return known or [DEFAULT_STREAM]
    if known and wanted not in known:
        raise ConfigError(
            f"--stream: {unknown('stream', one_line(wanted), known)}. "
            "A stream is known once it has had an event or a relay"
        )
    return [wanted]


def render(streams: list[StreamSeen]) -> list[str]:
    """Return the lines of the text output, at most 80 columns wide."""
    lines: list[str] = []
    for seen in streams:
        alive = sum(relay.state != "gone" for relay in seen.relays)
        facts = [
            ("lag", duration(seen.lag_seconds)),
            ("blocked keys", f"{seen.blocked_keys:,}"),
            ("lanes held", f"{seen.lanes['held']} of {seen.lanes['total']}"),
            ("relays alive", str(alive)),
        ]
        counts = [(s, f"{n:,}") for s, n in seen.counts.items() if n or s not in _RARE]
        lines += [_title(seen.stream), *(lines_of(seen.consumer) if seen.consumer else ())]
        lines += [
            f"  {state:<12}{count:>14}      {name:<14}{value:>14}".rstrip()
            for (state, count), (name, value) in zip_longest(counts, facts, fillvalue=("", ""))
        ]
        lines += ["", *_relays(seen.relays), ""]
        for text in seen.warnings:
            lines += wrap(
                f"warning: {one_line(text)}", _COLUMNS, initial_indent="  ",
                subsequent_indent="    ",
            )  # fmt: skip
        lines += [""] if seen.warnings else []
        if seen.failing:
            lines += ["  failed events, most frequent errors first (of the first 50):"]
            lines += [f"  {one.events:>5}  {_cut(one.error, 71)}" for one in seen.failing]
            lines += [""]
    return lines[:-1]


def _title(stream: str) -> str:
    """Return the name of a stream; the messages that a consumer has stored are in its own."""
    if stream.startswith(INBOX_STREAM_PREFIX):
        return f"consumer {one_line(stream.removeprefix(INBOX_STREAM_PREFIX))}"
    return f"stream {one_line(stream)}"


def _controls(paused: list[Control], limited: list[Control]) -> list[str]:
    """Return a line for each pause and each limit, whatever streams are shown."""
    lines = [
        f"paused: {one.kind} {one_line(one.name)}, {until(one)}, by {one_line(one.who)}"
        + (f": {one_line(one.reason)}" if one.reason else "")
        for one in paused
    ]
    lines += [f"limited: {one.kind} {one_line(one.name)}, {one.limits}" for one in limited]
    return ["", *lines] if lines else []


def _operations(found: list[Operation]) -> list[str]:
    """Return a line for each unfinished operation."""
    lines = []
    for one in found:
        total = "" if one.total is None else f" of {one.total:,}"
        why = f": {one_line(one.error)}" if one.error else ""
        name, kind, state = map(one_line, (one.id, one.kind, one.state))
        told = f"operation {name}: {kind} {state}, {one.handled:,}{total}{why}"
        lines += wrap(told, _COLUMNS, subsequent_indent="    ")
    for stopped in conditions.of_operations(found):
        lines += [f"  warning: {one_line(stopped.text)}"]
    return ["", *lines] if lines else []


def _progress(one: Operation) -> dict[str, object]:
    names = ("id", "kind", "state", "who", "total", "handled", "failed", "error")
    return {name: value for name, value in one._asdict().items() if name in names}


def _limits(control: Control) -> dict[str, object]:
    return {
        "kind": control.kind,
        "name": control.name,
        "max_per_second": control.max_per_second,
        "max_in_flight": control.max_in_flight,
    }


def _facts(control: Control) -> dict[str, object]:
    ends = None if control.until_us is None else control.until_us / 1_000_000
    began = None if control.paused_us is None else control.paused_us / 1_000_000
    return {
        "kind": control.kind,
        "name": control.name,
        "since": None if began is None else datetime.fromtimestamp(began, UTC).isoformat(),
        "until": None if ends is None else datetime.fromtimestamp(ends, UTC).isoformat(),
        "reason": control.reason,
        "who": control.who,
    }


def _relays(relays: list[RelaySeen]) -> list[str]:
    if not relays:
        return ["  no relay serves this stream"]
    rows = [("relay", "state", "lanes", "owner")]
    rows += [(_cut(r.name) or "-", r.state, str(r.lanes), _cut(r.owner)) for r in relays]
    width = max(len(row[0]) for row in rows)
    return [f"  {name:<{width}}  {state:<9}  {n:>5}  {owner}" for name, state, n, owner in rows]


def _cut(text: str, columns: int = _NAME_COLUMNS) -> str:
    shown = one_line(text)
    return shown if len(shown) <= columns else shown[: columns - 1] + "…"
