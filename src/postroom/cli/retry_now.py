"""`postroom retry-now`: makes failed events due that wait for their next attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import click

from postroom.cli.options import (
    by_option,
    dry_run_option,
    json_option,
    store_option,
    whoami,
    yes_option,
)
from postroom.cli.replay import Order, carry_out
from postroom.cli.selection import read_selection, require_one, selection_options
from postroom.errors import ConfigError
from postroom.model.url import Url
from postroom.record import State
from postroom.store import Store


@click.command("retry-now", short_help="Retry waiting events at once.")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@store_option
@click.option("--all", "everything", is_flag=True, help="All events that wait for a retry.")
@selection_options
@by_option
@dry_run_option
@yes_option
@json_option
def retry_now(
    ids: Sequence[str],
    store: Url,
    everything: bool,
    by: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Retry failed events at once, instead of at the time of their next attempt.

    Their attempts stay counted; safe while relays run. Asks for confirmation above 100 events.

    \b
    Examples:
      postroom retry-now order-created-42
      postroom retry-now --stream orders --error "connection refused"
      postroom retry-now --key customer-7
    """  # noqa: D301 - click knows the sign
    if given["group"] is not None:
        raise ConfigError("--group selects dead letters, which do not wait: see postroom replay")
    selection = read_selection(State.FAILED, given)
    require_one(ids, selection, everything=everything, verb="retry")
    who = whoami(by)

    async def work(opened_store: Store, step: list[str]) -> int:
        return await opened_store.retry_now(step, by=who)

    order = Order(
        "retry", "to be sent at once", (State.FAILED,), work, lambda _: [],
        dry_run=dry_run, yes=yes, as_json=as_json,
    )  # fmt: skip
    return asyncio.run(carry_out(store, ids, selection, order))
