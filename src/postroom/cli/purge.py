"""`postroom purge`: deletes dead letters, and events that expired or were cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from postroom.admin.selection import Chosen
from postroom.admin.values import span
from postroom.cli.options import (
    by_option,
    dry_run_option,
    json_option,
    reader,
    store_option,
    whoami,
    yes_option,
)
from postroom.cli.replay import Order, carry_out
from postroom.cli.selection import read_selection, require_one, selection_options
from postroom.commands import UNSENT
from postroom.model.clock import to_microseconds
from postroom.model.url import Url
from postroom.record import State
from postroom.store import Store


@click.command(short_help="Delete dead letters.")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@store_option
@click.option("--all", "everything", is_flag=True, help="All events in the state of --state.")
@click.option(
    "--state", type=click.Choice([str(state) for state in UNSENT]), default="dead",
    show_default=True, help="State of the events that filters select.",
)  # fmt: skip
@click.option(
    "--older-than",
    "older_than",
    callback=reader(span),
    metavar="SPAN",
    help="Only events that ended longer ago: 12h, 30d.",
)
@selection_options
@by_option
@dry_run_option
@yes_option
@json_option
def purge(
    ids: Sequence[str],
    store: Url,
    everything: bool,
    state: str,
    older_than: float | None,
    by: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Delete dead letters for good, or events that expired or were cancelled.

    Asks for confirmation above 100 events. Ctrl-C stops between two transactions; run the command
    again to continue. Relays delete old dead letters themselves if keep_dead_seconds is set.

    \b
    Examples:
      postroom purge order-created-42
      postroom purge --older-than 90d --dry-run
      postroom purge --group 3f2a91c0 --yes
      postroom purge --all --state expired --stream mail
    """  # noqa: D301 - click knows the sign
    selection = read_selection(State(state), given)
    if older_than is not None:
        before = to_microseconds(datetime.now(UTC) - timedelta(seconds=older_than))
        selection = selection.narrowed(settled_before_us=before)
    require_one(ids, selection, everything=everything, verb="purge")
    who = whoami(by)

    async def work(opened_store: Store, step: list[str]) -> int:
        return await opened_store.purge(step, by=who)

    order = Order(
        "purge", "to be deleted", UNSENT, work, _effects, dry_run=dry_run, yes=yes, as_json=as_json
    )
    return asyncio.run(carry_out(store, ids, selection, order))


def _effects(chosen: Sequence[Chosen]) -> list[str]:
    effects = ["payloads are deleted; these events cannot be replayed afterwards"]
    if numbered := sum(event.is_numbered for event in chosen):
        effects.append(
            f"{numbered:,} of them have a number of strict order that was not skipped: their "
            "consumers wait for it"
        )
    return effects
