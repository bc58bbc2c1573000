"""`postroom health`: a container probe that needs no HTTP."""

from __future__ import annotations

import asyncio
import socket
from textwrap import wrap
from typing import Any

import click

from postroom.admin.texts import one_line
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import (
    json_option,
    opened,
    print_json,
    shared_store,
    store_option,
)
from postroom.errors import SchemaError, StoreError
from postroom.model.url import Url
from postroom.store import Member, Store
from postroom.telemetry import conditions

_PATIENCE_SECONDS = 10.0
_COLUMNS = 80


@click.command(short_help="Check store and relay, for container probes.")
@store_option
@click.option("--stream", help="Only relays of this stream.  [default: all]")
@click.option("--name", help="Relay that must be alive.  [default: any relay on this host]")
@click.option("--store-only", is_flag=True, help="Do not check for a relay.")
@json_option
def health(
    store: Url, stream: str | None, name: str | None, store_only: bool, as_json: bool
) -> int:
    """Check that the store answers, is migrated, and is served by a relay on this host.

    An unreachable broker, lag, blocked keys and dead letters are warnings, not failures: a restart
    would not help. Exit code 0 if healthy, 1 if not.

    \b
    Examples:
      postroom health --store sqlite:///app.db
      postroom health --name "$POD_NAME"
    """  # noqa: D301 - click knows the sign
    facts = asyncio.run(_ask(store, stream, name, store_only=store_only))
    if as_json:
        print_json(facts)
    else:
        click.echo("healthy" if facts["healthy"] else "not healthy")
        warnings = [f"warning: {one}" for one in facts["warnings"]]
        notes = [f"note: {one}" for one in facts["notes"]]
        for line in (*facts["problems"], *warnings, *notes):
            wrapped = wrap(
                f"  {one_line(line)}", _COLUMNS, subsequent_indent="    ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
            click.echo("\n".join(wrapped))
    return ExitCode.OK if facts["healthy"] else ExitCode.BROKEN


async def _ask(
    url: Url, stream: str | None, name: str | None, *, store_only: bool
) -> dict[str, Any]:
    problems: list[str] = []
    warnings: list[str] = []
    notes: list[str] = []
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS), opened(shared_store(url)) as store:
            streams = [stream] if stream is not None else await store.streams()
            alive = await _look(store, streams, warnings)
            controls = await store.controls()
            notes += [f"{one.kind} {one.name} is paused" for one in controls if one.paused]
            limited = [one for one in controls if one.limited]
            notes += [f"{one.kind} {one.name} is limited: {one.limits}" for one in limited]
            if not store_only and not _is_there(alive, name):
                relay = f"relay {name!r}" if name else "relay on this host"
                problems.append(f"no heartbeat from a {relay}")
    except (StoreError, SchemaError, TimeoutError) as error:
        slow = f"the store did not answer within {_PATIENCE_SECONDS:g} s"
        problems.append(one_line(str(error)) or slow)
    return {"healthy": not problems, "problems": problems, "warnings": warnings, "notes": notes}


async def _look(store: Store, streams: list[str], warnings: list[str]) -> list[Member]:
    alive: list[Member] = []
    for stream in streams:
        seen = await conditions.look(store, stream)
        alive += seen.membership.members
        warnings += [
            f"{one.text}: {one.cause}" if one.cause else one.text
            for one in conditions.of_stream(seen)
        ]
    stopped = conditions.of_operations(await store.operations(unfinished=True))
    warnings += [one.text for one in stopped]
    return alive


def _is_there(alive: list[Member], name: str | None) -> bool:
    if name is not None:
        return any(member.name == name for member in alive)
    return any(member.name.startswith(f"{socket.gethostname()}:") for member in alive)
