"""`postroom cancel` and `reschedule`: events that wait for their first attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

import click

from postroom.admin.texts import many, one_line
from postroom.admin.values import span
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import (
    by_option,
    json_option,
    opened,
    print_json,
    reader,
    shared_store,
    store_option,
    whoami,
)
from postroom.cli.selection import whole_id
from postroom.engine.lock_retries import past_locks
from postroom.errors import ConfigError
from postroom.model.clock import instant_text, to_microseconds
from postroom.model.url import Url
from postroom.record import Stage, State
from postroom.store import Store

Work = Callable[[Store, str], Awaitable[int]]


def _instant(text: str) -> int:
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("a time such as 2026-05-01T12:00Z") from None
    return to_microseconds(at if at.tzinfo else at.replace(tzinfo=UTC))


@click.command(short_help="Cancel delayed events.")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@store_option
@click.option("--reason", default="", metavar="TEXT", help="Reason, stored with the event.")
@by_option
@json_option
def cancel(ids: Sequence[str], store: Url, reason: str, by: str | None, as_json: bool) -> int:
    """Cancel events that wait for their first attempt; they are never sent.

    An event that was due is too late: a relay may have sent it. The command then names it and exits
    with 1; `bury` ends an event that may be in flight.

    \b
    Examples:
      postroom cancel reminder-42
      postroom cancel reminder-42 reminder-43 --reason "order cancelled"
    """  # noqa: D301 - click knows the sign
    who = whoami(by)

    async def work(opened_store: Store, name: str) -> int:
        return await past_locks(lambda: opened_store.cancel([name], reason, by=who))

    return asyncio.run(_change(store, ids, work, "cancel", as_json=as_json))


@click.command(short_help="Change the time of delayed events.")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@store_option
@click.option(
    "--at", callback=reader(_instant), metavar="TIME", help="New time: 2026-05-01T12:00Z (UTC)."
)
@click.option(
    "--in", "seconds", callback=reader(span), metavar="DURATION",
    help="New time, from now: 90s, 15m, 12h.  [0: now]",
)  # fmt: skip
@by_option
@json_option
def reschedule(
    ids: Sequence[str],
    store: Url,
    at: int | None,
    seconds: float | None,
    by: str | None,
    as_json: bool,
) -> int:
    """Change the time of events that wait for their first attempt.

    An event that was due is too late, as with `cancel`.

    \b
    Examples:
      postroom reschedule reminder-42 --at 2026-05-01T12:00Z
      postroom reschedule reminder-42 reminder-43 --in 2h
    """  # noqa: D301 - click knows the sign
    if (at is None) == (seconds is None):
        raise ConfigError("give the new time with --at or --in, and only one of them")
    when = at
    if when is None:
        when = to_microseconds(datetime.now(UTC) + timedelta(seconds=seconds or 0.0))
    who = whoami(by)

    async def work(opened_store: Store, name: str) -> int:
        return await past_locks(lambda: opened_store.reschedule([name], when, by=who))

    return asyncio.run(_change(store, ids, work, "reschedule", as_json=as_json, at=when))


async def _change(
    url: Url, ids: Sequence[str], work: Work, verb: str, *, as_json: bool, at: int | None = None
) -> int:
    changed: list[str] = []
    left: dict[str, str] = {}
    async with opened(shared_store(url)) as store:
        for name in dict.fromkeys([await whole_id(store, given) for given in ids]):
            if await work(store, name):
                changed.append(name)
            else:
                left[name] = await _why(store, name)
    if as_json:
        unchanged = [{"id": name, "reason": reason} for name, reason in left.items()]
        when = {} if at is None else {"at": instant_text(at)}
        print_json({"verb": verb, **when, "changed": changed, "unchanged": unchanged})
    else:
        end = "" if at is None else f" to {instant_text(at)}"
        click.echo(f"{_PAST[verb]} {many(len(changed), 'event')}{end}")
        for name, reason in left.items():
            click.echo(f"unchanged: {one_line(name)} {reason}", err=True)
    return ExitCode.BROKEN if left else ExitCode.OK


async def _why(store: Store, name: str) -> str:
    """Return why an event could not be changed."""
    record, details = await store.get(name), await store.details(name)
    if record is None or details is None:
        return "does not exist; see: postroom list"
    if details.stage == Stage.OVER:
        return f"is {record.state}"
    if record.state == State.FAILED:
        return "has failed before and will be retried; see: postroom bury"
    if details.stage == Stage.WAITING:
        return "would expire before that time"
    return "is too late: it was due, and may be in flight; see: postroom bury"


_PAST = {"cancel": "cancelled", "reschedule": "rescheduled"}
