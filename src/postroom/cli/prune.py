"""`postroom prune`: delete old done events or inbox rows."""

from __future__ import annotations

import asyncio

import click

from postroom.admin.values import span
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import (
    by_option,
    dry_run_option,
    json_option,
    opened,
    print_json,
    reader,
    shared_store,
    store_option,
    whoami,
)
from postroom.cli.progress import gently, progress
from postroom.commands import AuditEntry
from postroom.event import INBOX_STREAM_PREFIX
from postroom.model.url import Url
from postroom.record import State

STEP = 1_000


@click.command(short_help="Delete old done events or inbox rows.")
@store_option
@click.option(
    "--older-than",
    "older_than",
    required=True,
    callback=reader(span),
    metavar="SPAN",
    help="Minimum age since delivery: 90s, 12h, 7d.",
)
@click.option(
    "--inbox",
    "inbox",
    metavar="NAME",
    help="Delete inbox rows of this consumer (for example payments/charge) instead of events.",
)
@by_option
@dry_run_option
@json_option
def prune(
    store: Url, older_than: float, inbox: str | None, by: str | None, dry_run: bool, as_json: bool
) -> int:
    """Delete done events or inbox rows, oldest first, in small transactions.

    Relays and consumers prune automatically (`keep_done_seconds`, `dedup_seconds`). Dead letters
    and the inbox rows of dead or unfinished events are never pruned. --inbox is for `accept` by
    hand, for FastStream and for handlers that no longer exist; `doctor` names inboxes that nothing
    prunes. A message redelivered after its row is deleted is handled again.

    \b
    Examples:
      postroom prune --older-than 7d --dry-run
      postroom prune --older-than 12h
      postroom prune --older-than 90d --inbox payments/old_handler
    """  # noqa: D301 - click knows the sign
    if inbox is not None:
        if dry_run:
            raise click.UsageError("--dry-run cannot be combined with --inbox")
        return asyncio.run(_forget(store, older_than, inbox, by, as_json=as_json))
    return asyncio.run(_prune(store, older_than, by, dry_run=dry_run, as_json=as_json))


async def _forget(url: Url, older_than: float, inbox: str, by: str | None, *, as_json: bool) -> int:
    async with opened(shared_store(url)) as store:
        kept_by = [
            s.removeprefix(INBOX_STREAM_PREFIX)
            for s in await store.streams()
            if s.startswith(INBOX_STREAM_PREFIX)
        ]
        removed = await store.forget_accepted(inbox, older_than, kept_by)
        if removed:
            about = f"inbox rows of {inbox}, older than {older_than:g} s"
            await store.record_audit(AuditEntry(whoami(by), "prune", removed, about))
    if as_json:
        print_json({"inbox": inbox, "removed": removed})
    else:
        click.echo(f"removed {removed:,} inbox rows of {inbox}")
    return ExitCode.OK


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
                    about = f"done events, older than {older_than:g} s"
                    await store.record_audit(AuditEntry(whoami(by), "prune", step, about))
                removed, more = removed + step, step == STEP
                bar.add(step)
    if as_json:
        print_json({"done": kept, "removed": removed, "dry_run": dry_run})
    elif dry_run:
        click.echo(f"{kept:,} done events; those older than {older_than:g} s would be deleted")
    else:
        click.echo(f"removed {removed:,} of {kept:,} done events")
    return ExitCode.INTERRUPTED if stop.asked and more else ExitCode.OK
