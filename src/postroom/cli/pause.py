"""`postroom pause` and `resume`: stop and start sending or receiving, in all processes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import click

from postroom.admin.texts import one_line
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
from postroom.engine.consumer.durable_inbox import stream_of
from postroom.model.controls import CONSUMER, STREAM, TOPIC, Control, check_control
from postroom.model.url import Url
from postroom.store import Store

topic_option = click.option("--topic", metavar="TOPIC", help="A topic, in all streams.")
_consumer_option = click.option("--consumer", metavar="NAME", help="A consumer.")


@click.command(short_help="Pause a stream, a topic or a consumer.")
@click.argument("stream", required=False)
@store_option
@topic_option
@_consumer_option
@click.option(
    "--for", "seconds", callback=reader(span), metavar="DURATION",
    help="Resume after this time: 10m, 2h.  [default: until `resume`]",
)  # fmt: skip
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown by `status`.")
@by_option
@json_option
def pause(
    stream: str | None,
    store: Url,
    topic: str | None,
    consumer: str | None,
    seconds: float | None,
    reason: str,
    by: str | None,
    as_json: bool,
) -> int:
    """Pause a stream, a topic or a consumer, in all processes, within a second.

    Events in flight finish. Nothing is lost and no attempt is spent. Events of a paused topic hold
    back later events of their keys. A paused consumer stays in its group.

    \b
    Examples:
      postroom pause orders --for 10m --reason "database maintenance"
      postroom pause --topic invoices
      postroom pause --consumer mail
    """  # noqa: D301 - click knows the sign
    kind, name = what(stream, topic, consumer)
    asyncio.run(_set(store, kind, name, seconds=seconds, reason=reason, by=whoami(by)))
    if as_json:
        print_json({"verb": "pause", "kind": kind, "name": name, "seconds": seconds})
    else:
        end = "" if seconds is None else f" for {seconds:g} s"
        command = Control(kind, name, paused=True).command
        click.echo(f"paused {kind} {one_line(name)}{end}; resume it with: {one_line(command)}")
    return ExitCode.OK


@click.command(short_help="Resume a paused stream, topic or consumer.")
@click.argument("stream", required=False)
@store_option
@topic_option
@_consumer_option
@by_option
@json_option
def resume(
    stream: str | None,
    store: Url,
    topic: str | None,
    consumer: str | None,
    by: str | None,
    as_json: bool,
) -> int:
    """Resume what `pause` has paused; relays go on within seconds.

    \b
    Examples:
      postroom resume orders
      postroom resume --topic invoices
    """  # noqa: D301 - click knows the sign
    kind, name = what(stream, topic, consumer)
    changed = asyncio.run(_unset(store, kind, name, whoami(by)))
    if as_json:
        print_json({"verb": "resume", "kind": kind, "name": name, "changed": changed})
    elif changed:
        click.echo(f"resumed {kind} {one_line(name)}")
    else:
        click.echo(f"{kind} {one_line(name)} is not paused", err=True)
    return ExitCode.OK


def until(control: Control) -> str:
    """Return when a pause ends, for `status`."""
    if control.until_us is None:
        return "until it is resumed"
    end = datetime.fromtimestamp(control.until_us / 1_000_000, UTC)
    return f"until {end.isoformat(timespec='seconds').replace('+00:00', 'Z')}"


def what(stream: str | None, topic: str | None, consumer: str | None = None) -> tuple[str, str]:
    """Return kind and name of what a command names; exactly one of them is given."""
    given = [(STREAM, stream), (TOPIC, topic), (CONSUMER, consumer)]
    found = [(kind, name) for kind, name in given if name is not None]
    if len(found) != 1:
        raise click.UsageError("Give one of STREAM, --topic or --consumer.")
    check_control(*found[0])
    return found[0]


async def _set(
    url: Url, kind: str, name: str, *, seconds: float | None, reason: str, by: str
) -> None:
    async with opened(shared_store(url)) as store:
        await store.set_control(kind, name, pause=True, seconds=seconds, reason=reason, by=by)
        await warn_of_a_typo(store, kind, name)


async def _unset(url: Url, kind: str, name: str, by: str) -> bool:
    async with opened(shared_store(url)) as store:
        return await store.set_control(kind, name, pause=False, by=by)


async def warn_of_a_typo(store: Store, kind: str, name: str) -> None:
    """Say that nothing is known of this stream or consumer: the command has no effect yet."""
    if kind == TOPIC:
        return
    known = await store.streams()
    if (name if kind == STREAM else stream_of(name)) not in known:
        click.echo(
            f"warning: no {kind} {one_line(name)} has run or has events here; check its name "
            "with: postroom status",
            err=True,
        )
