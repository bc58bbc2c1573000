"""`postroom health`: for probes of containers, without HTTP."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import click

from postroom.cli.exit_codes import ExitCode, one_line
from postroom.cli.options import (
    json_option,
    many,
    opened,
    print_json,
    shared_store,
    store_option,
)
from postroom.errors import SchemaError, StoreError
from postroom.model.url import Url
from postroom.record import State
from postroom.store import Member, Store

LAG_SECONDS = 60.0
_PATIENCE_SECONDS = 10.0


@click.command(short_help="Say whether store and relay are well, for probes.")
@store_option
@click.option("--stream", help="Only relays of this stream.  [default: all]")
@click.option("--name", help="The relay that must be alive.  [default: one of this host]")
@click.option("--store-only", is_flag=True, help="Do not ask for a relay.")
@json_option
def health(
    store: Url, stream: str | None, name: str | None, store_only: bool, as_json: bool
) -> int:
    """Say whether the store answers, is migrated, and is served by a relay of this host.

    A broker that is away, a lag or dead letters are warnings, no failure: a restart would not help.
    Exit code 0 if all is well, 1 if not.

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
        for line in (*facts["problems"], *(f"warning: {w}" for w in facts["warnings"])):
            click.echo(f"  {one_line(line)}")
    return ExitCode.OK if facts["healthy"] else ExitCode.BROKEN


async def _ask(
    url: Url, stream: str | None, name: str | None, *, store_only: bool
) -> dict[str, Any]:
    problems: list[str] = []
    warnings: list[str] = []
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS), opened(shared_store(url)) as store:
            streams = [stream] if stream is not None else await store.streams()
            alive = await _look(store, streams, warnings)
            if not store_only and not _is_there(alive, name):
                who = f"no relay named {name!r}" if name else "no relay of this host"
                problems.append(f"{who} gives a sign of life")
    except (StoreError, SchemaError, TimeoutError) as error:
        problems.append(one_line(str(error)) or "the store does not answer in time")
    return {"healthy": not problems, "problems": problems, "warnings": warnings}


async def _look(store: Store, streams: list[str], warnings: list[str]) -> list[Member]:
    alive: list[Member] = []
    for stream in streams:
        members = (await store.leases(stream)).members
        alive += members
        warnings += [
            f"the destination of stream {stream} is away for {member.name or member.owner}"
            for member in members
            if not member.healthy
        ]
        stats = await store.stats(stream)
        if stats.lag_seconds > LAG_SECONDS:
            warnings.append(f"stream {stream} lags by {stats.lag_seconds:,.0f} s")
        if stats.counts[State.DEAD]:
            warnings.append(f"stream {stream} has {many(stats.counts[State.DEAD], 'dead letter')}")
    return alive


def _is_there(alive: list[Member], name: str | None) -> bool:
    if name is not None:
        return any(member.name == name for member in alive)
    return any(member.name.startswith(f"{socket.gethostname()}:") for member in alive)
