"""`postroom prune`: delete done events that are old enough."""

from __future__ import annotations

import asyncio

import click

from postroom.cli.exits import ExitCode
from postroom.cli.options import (
    by_option,
    dry_run_option,
    json_option,
    opened,
    print_json,
    reader,
    shared_store,
    span,
    store_option,
    whoami,
)
from postroom.cli.progress import gently, progress
from postroom.record import State
from postroom.store import Deed
from postroom.url import Url

STEP = 1_000


@click.command()
@store_option
@click.option(
    "--older-than",
    "older_than",
    required=True,
    callback=reader(span),
    metavar="SPAN",
    help="Delivered longer ago than that: 90s, 12h, 7d.",
)
@by_option
@dry_run_option
@json_option
def prune(store: Url, older_than: float, by: str | None, dry_run: bool, as_json: bool) -> int:
    """Delete done events, oldest first, in small steps.

    Relays do this by themselves (`keep_done_seconds`). Dead letters are never pruned.

    \b
    Examples:
      postroom prune --older-than 7d --dry-run
      postroom prune --older-than 12h
    """  # noqa: D301 - click knows the sign
    return asyncio.run(_prune(store, older_than, by, dry_run=dry_run, as_json=as_json))


async def _prune(
    url: Url, older_than: float, by: str | None, *, dry_run: bool, as_json: bool
) -> int:
    async with gently() as stop, opened(shared_store(url)) as store:
        kept = (await store.stats()).counts[State.DONE]
        removed, more = 0, not dry_run
        with progress("pruning") as bar:
            while more and not stop.asked:
                step = await store.prune(older_than, STEP)
                if step:
                    about = f"done for more than {older_than:g} s"
                    await store.note(Deed(whoami(by), "prune", step, about))
                removed, more = removed + step, step == STEP
                bar.add(step)
    if as_json:
        print_json({"done": kept, "removed": removed, "dry_run": dry_run})
    elif dry_run:
        click.echo(f"{kept:,} done events are kept; those done for {older_than:g} s would go")
    else:
        click.echo(f"removed {removed:,} of {kept:,} done events")
    return ExitCode.INTERRUPTED if stop.asked and more else ExitCode.OK
