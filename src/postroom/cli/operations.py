"""`postroom operations`: stored work on many events, and its progress."""

from __future__ import annotations

import asyncio

import click

from postroom.admin.operation_facts import facts
from postroom.admin.texts import duration, instant, many, one_line
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
from postroom.cli.progress import gently
from postroom.cli.run_operation import run_here
from postroom.errors import ConfigError, NotFoundError
from postroom.model.clock import host_microseconds
from postroom.model.url import Url
from postroom.operation import Change, Operation, OperationState
from postroom.store import Store

_VERBS = ("list", "show", "pause", "resume", "cancel", "run")


@click.command(short_help="List and control stored operations.")
@click.argument("what", type=click.Choice(_VERBS), default="list")
@click.argument("operation_id", metavar="[ID]", required=False)
@store_option
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True,
    help="With list: maximum operations.",
)  # fmt: skip
@by_option
@json_option
def operations(
    what: str,
    operation_id: str | None,
    store: Url,
    limit: int,
    by: str | None,
    as_json: bool,
) -> int:
    """List stored operations, such as replays by filter, and control them.

    \b
    list    newest first (default)
    show    one operation in full
    pause   stop it until `resume`
    resume  let it continue; also after it has stopped
    cancel  end it; the events that it has not reached stay unchanged
    run     run it in this process; without ID: all that no process runs

    A running operation is continued by any relay of the store, or by `run`.

    \b
    Examples:
      postroom operations
      postroom operations show 3f2a91c0
      postroom operations cancel 3f2a91c0
    """  # noqa: D301 - click knows the sign
    if what in ("list", "run"):
        if what == "list" and operation_id is not None:
            raise click.UsageError("`list` takes no ID; see: postroom operations show ID")
    elif operation_id is None:
        raise click.UsageError(f"`{what}` needs the ID of an operation.")
    return asyncio.run(_do(store, what, operation_id, limit, whoami(by), as_json=as_json))


async def _do(
    url: Url, what: str, operation_id: str | None, limit: int, by: str, *, as_json: bool
) -> int:
    async with opened(shared_store(url)) as store:
        match what:
            case "list":
                _list(await store.operations(limit=limit), as_json=as_json)
                return ExitCode.OK
            case "run":
                return await _run(store, operation_id, by, as_json=as_json)
            case "show":
                one = await _find(store, operation_id)
                if as_json:
                    print_json(facts(one))
                else:
                    click.echo("\n".join(_described(one)))
                return ExitCode.OK
            case _:
                return await _change(store, operation_id, Change(what), by, as_json=as_json)


async def _find(store: Store, operation_id: str | None) -> Operation:
    found = await store.operation(operation_id or "")
    if found is None:
        raise NotFoundError(f"no operation with id {operation_id!r}; see: postroom operations")
    return found


async def _change(
    store: Store, operation_id: str | None, change: Change, by: str, *, as_json: bool
) -> int:
    before = await _find(store, operation_id)
    changed = await store.change_operation(before.id, change, by=by)
    after = await _find(store, operation_id)
    if not changed and after.state != change.after:
        raise ConfigError(f"operation {after.id} is {after.state}; it cannot be {_PAST[change]}")
    if as_json:
        print_json({"verb": str(change), "changed": changed, **facts(after)})
    elif changed:
        click.echo(f"{_PAST[change]} operation {after.id} after {many(after.handled, 'event')}")
    else:
        click.echo(f"operation {after.id} is already {after.state}", err=True)
    return ExitCode.OK


async def _run(store: Store, operation_id: str | None, by: str, *, as_json: bool) -> int:
    """Run one operation, or all that are free, one after the other."""
    if operation_id is not None:
        chosen = [await _find(store, operation_id)]
        if chosen[0].state != OperationState.RUNNING:
            way = "" if chosen[0].state not in Change.RESUME.before else "; resume it first"
            raise ConfigError(f"operation {operation_id} is {chosen[0].state}{way}")
    else:
        chosen = [one for one in await store.operations(unfinished=True) if one.free][::-1]
    code = ExitCode.OK
    async with gently() as stop:
        for one in chosen:
            after = await run_here(store, one.id, stop, by=by)
            if as_json:
                print_json(facts(after), lines=True)
            else:
                click.echo(_row(after))
            if stop.asked:
                return ExitCode.INTERRUPTED
            if after.state != OperationState.DONE:
                code = ExitCode.BROKEN
    if not chosen and not as_json:
        click.echo("no operation waits for a process", err=True)
    return code


def _list(found: list[Operation], *, as_json: bool) -> None:
    if as_json:
        for one in found:
            print_json(facts(one), lines=True)
        return
    if found:
        click.echo(_columns("id", "kind", "state", "events", "failed", "age", "who"))
    for one in found:
        click.echo(_row(one))
        if one.error:
            click.echo(f"    {_cut(one.error, 76)}")
    if not found:
        click.echo("no operations", err=True)


def _row(one: Operation) -> str:
    age = duration(max(0.0, (host_microseconds() - one.created_us) / 1_000_000))
    return _columns(
        one.id, one.kind, one.state, _progress(one), f"{one.failed:,}", age, _cut(one.who, 16)
    )


def _columns(*values: str) -> str:
    widths = (-8, -6, -9, 15, 6, 12)
    padded = [
        f"{value:<{-width}}" if width < 0 else f"{value:>{width}}"
        for value, width in zip(values, widths, strict=False)
    ]
    return one_line("  ".join([*padded, values[-1]]).rstrip())


def _progress(one: Operation) -> str:
    return f"{one.handled:,}" + ("" if one.total is None else f"/{one.total:,}")


def _described(one: Operation) -> list[str]:
    told = {
        "operation": one.id,
        "kind": one.kind,
        "state": one.state,
        "events": _progress(one),
        "failed": f"{one.failed:,}",
        "error": one.error or "-",
        "started": f"{instant(one.created_us)} by {one.who}",
        "changed": str(instant(one.changed_us)),
        "process": (one.owner or "-") + (" (its lease has expired)" if one.free else ""),
        "request": one.request,
        "position": one.position or "-",
    }
    return [f"{name:<10}{one_line(value)}" for name, value in told.items()]


def _cut(text: str, width: int) -> str:
    shown = one_line(text)
    return shown if len(shown) <= width else shown[: width - 1] + "…"


_PAST = {Change.PAUSE: "paused", Change.RESUME: "resumed", Change.CANCEL: "cancelled"}
