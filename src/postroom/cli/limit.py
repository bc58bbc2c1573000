"""`postroom limit`: how fast a stream or a topic is sent, in all processes."""

from __future__ import annotations

import asyncio

import click

from postroom.admin.texts import one_line
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import (
    by_option,
    json_option,
    opened,
    print_json,
    shared_store,
    store_option,
    whoami,
)
from postroom.cli.pause import topic_option, warn_of_a_typo, what
from postroom.model.controls import check_limits, limits_text
from postroom.model.url import Url


@click.command(short_help="Limit how fast a stream or a topic is sent.")
@click.argument("stream", required=False)
@store_option
@topic_option
@click.option("--per-second", type=float, metavar="N", help="Maximum attempts per second.")
@click.option("--in-flight", type=int, metavar="N", help="Maximum events in flight.")
@click.option("--none", "remove", is_flag=True, help="Remove the limits.")
@by_option
@json_option
def limit(
    stream: str | None,
    store: Url,
    topic: str | None,
    per_second: float | None,
    in_flight: int | None,
    remove: bool,
    by: str | None,
    as_json: bool,
) -> int:
    """Limit a stream or a topic, for all relays together, within seconds.

    Both limits are replaced: the one that is not given is removed. Each relay has the part of a
    limit that its lanes are of all lanes. Nothing is lost and no attempt is spent.

    \b
    Examples:
      postroom limit orders --per-second 200 --in-flight 50
      postroom limit --topic invoices --per-second 0.5
      postroom limit orders --none
    """  # noqa: D301 - click knows the sign
    if (stream is None) == (topic is None):
        raise click.UsageError("Give STREAM or --topic.")
    kind, name = what(stream, topic)
    if remove == (per_second is not None or in_flight is not None):
        raise click.UsageError("Give --per-second, --in-flight or both; or --none.")
    check_limits(kind, name, per_second, in_flight)
    changed = asyncio.run(_set(store, kind, name, per_second, in_flight, whoami(by)))
    if as_json:
        facts = {"max_per_second": per_second, "max_in_flight": in_flight, "changed": changed}
        print_json({"verb": "limit", "kind": kind, "name": name, **facts})
    elif not changed:
        click.echo(f"{kind} {one_line(name)} has no limit", err=True)
    elif remove:
        click.echo(f"removed the limits of {kind} {one_line(name)}")
    else:
        click.echo(f"limited {kind} {one_line(name)}: {limits_text(per_second, in_flight)}")
    return ExitCode.OK


async def _set(
    url: Url, kind: str, name: str, per_second: float | None, in_flight: int | None, by: str
) -> bool:
    async with opened(shared_store(url)) as store:
        changed = await store.set_limits(
            kind, name, per_second=per_second, in_flight=in_flight, by=by
        )
        if changed:
            await warn_of_a_typo(store, kind, name)
    return changed
