"""`postroom replay`, `bury` and `skip`: operator commands on events that may be in flight (L7)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from postroom.admin.followers import with_followers
from postroom.admin.selection import Chosen, Selection, fetch, remember, replaced, walk
from postroom.admin.texts import many
from postroom.admin.values import per_second
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import (
    by_option,
    dry_run_option,
    json_option,
    opened,
    print_json,
    reader,
    reason_option,
    shared_store,
    store_option,
    whoami,
    yes_option,
)
from postroom.cli.progress import Stop, gently, progress
from postroom.cli.run_operation import replay_by_operation
from postroom.cli.selection import read_selection, require_one, selection_options, whole_id
from postroom.engine.lock_retries import past_locks
from postroom.engine.operations.request import ReplayRequest
from postroom.errors import ConfigError, NotFoundError, ReplacedError
from postroom.model.url import Url
from postroom.record import State
from postroom.store import Store

ASK_ABOVE = 100
STEP = 500  # events per transaction: small enough not to delay a relay

_OVER = (State.DEAD, State.DONE)
_UNFINISHED = (State.PENDING, State.FAILED, State.PROCESSING)


followers_option = click.option(
    "--with-followers", "followers", is_flag=True,
    help="With one ID: also the later events of its key, in one transaction.",
)  # fmt: skip


@dataclass(frozen=True)
class Order:
    """An operation on the selected events, applied in steps."""

    verb: str
    fate: str  # the intended result, for the summary
    states: Sequence[State]
    work: Callable[[Store, list[str]], Awaitable[int]]
    warnings: Callable[[Sequence[Chosen]], list[str]]
    copies: bool = False  # the originals stay unchanged: a restart would copy them twice
    dry_run: bool = False
    yes: bool = False
    as_json: bool = False
    followers: bool = False  # the events behind the named one, too, in one transaction
    operate: Callable[[Store, int, Stop], Awaitable[int]] | None = None  # for filters


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@store_option
@click.option("--all", "everything", is_flag=True, help="All events in the state of --state.")
@click.option(
    "--state", type=click.Choice(["dead", "done"]), default="dead", show_default=True,
    help="State of the events that filters select.",
)  # fmt: skip
@selection_options
@click.option("--new-id", is_flag=True, help="Send copies with new ids, unknown to every inbox.")
@followers_option
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most this many events.")
@click.option(
    "--rate",
    callback=reader(per_second),
    metavar="N/s",
    help="At most this many events a second.",
)
@click.option(
    "--canary", is_flag=True, help="Groups of 1, 2, 5, 20 … events; stop at the first failures."
)
@click.option("--detach", is_flag=True, help="Do not wait; a relay runs the operation.")
@by_option
@dry_run_option
@yes_option
@json_option
def replay(
    ids: Sequence[str],
    store: Url,
    everything: bool,
    state: str,
    new_id: bool,
    followers: bool,
    limit: int | None,
    rate: float | None,
    canary: bool,
    detach: bool,
    by: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Send dead or done events again, starting at attempt 0.

    Replays in the order the events were written; safe while relays run. Asks for confirmation
    above 100 events. A replay by filters is a stored operation (see `operations`): if this process
    dies, a relay continues it. Ctrl-C pauses it; run the command again to continue.

    \b
    Examples:
      postroom replay order-created-42
      postroom replay order-created-42 --with-followers
      postroom replay --group 3f2a91c0 --dry-run
      postroom replay --all --stream mail --since 1d --yes
      postroom replay --topic invoices --canary --rate 50/s
      postroom replay --state done --type order.created --new-id
    """  # noqa: D301 - click knows the sign
    selection = read_selection(State(state), given)
    require_one(ids, selection, everything=everything, verb="replay")
    if ids and (limit is not None or rate is not None or canary or detach):
        raise click.UsageError("--limit, --rate, --canary and --detach are for filters, not ids.")
    who = whoami(by)
    request = ReplayRequest(selection.filter, selection.group, new_id, limit, rate, canary)

    async def work(opened_store: Store, step: list[str]) -> int:
        return await opened_store.replay(step, new_id=new_id, by=who)

    async def operate(opened_store: Store, total: int, stop: Stop) -> int:
        return await replay_by_operation(
            opened_store, request, str(selection), total, stop,
            by=who, detach=detach, as_json=as_json,
        )  # fmt: skip

    order = Order(
        "replay", "to be sent again", _OVER, work, lambda c: _to_order(c, new_id=new_id),
        copies=new_id, dry_run=dry_run, yes=yes, as_json=as_json, operate=operate,
        followers=followers,
    )  # fmt: skip
    return asyncio.run(carry_out(store, ids, selection, order))


@click.command(short_help="Turn unfinished events into dead letters.")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@store_option
@click.option("--all", "everything", is_flag=True, help="All events in the state of --state.")
@click.option(
    "--state", type=click.Choice(["failed", "pending", "processing"]), default="failed",
    show_default=True, help="State of the events that filters select.",
)  # fmt: skip
@selection_options
@followers_option
@reason_option
@by_option
@dry_run_option
@yes_option
@json_option
def bury(
    ids: Sequence[str],
    store: Url,
    everything: bool,
    state: str,
    followers: bool,
    reason: str,
    by: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Turn unfinished events into dead letters; later events of their keys continue.

    Payloads are kept, and `replay` sends the events again. Asks for confirmation above 100 events.

    \b
    Examples:
      postroom bury order-created-42 --reason "sent by hand"
      postroom bury order-created-42 --with-followers --reason "customer deleted"
      postroom bury --error "no such customer" --reason "deleted" --dry-run
    """  # noqa: D301 - click knows the sign
    if given["group"] is not None:
        raise ConfigError("--group selects dead letters, which are already buried")
    selection = read_selection(State(state), given)
    require_one(ids, selection, everything=everything, verb="bury")
    who = whoami(by)

    async def work(opened_store: Store, step: list[str]) -> int:
        return await opened_store.bury(step, reason, by=who, whole=followers)

    order = Order(
        "bury", "to become dead letters", _UNFINISHED, work, lambda _: [],
        dry_run=dry_run, yes=yes, as_json=as_json, followers=followers,
    )  # fmt: skip
    return asyncio.run(carry_out(store, ids, selection, order))


@click.command(short_help="Bury an event and send a marker in its place.")
@click.argument("event_id", metavar="ID")
@store_option
@reason_option
@by_option
@dry_run_option
@json_option
def skip(
    event_id: str, store: Url, reason: str, by: str | None, dry_run: bool, as_json: bool
) -> int:
    """Bury one event and send a `postroom.skipped` marker in its place.

    For strict order, where consumers wait for every sequence number of a key. The marker carries
    the event's number and the reason; the event becomes a dead letter.

    \b
    Example:
      postroom skip order-created-42 --reason "cannot be encoded by the partner"
    """  # noqa: D301 - click knows the sign

    async def work() -> None:
        async with opened(shared_store(store)) as there:
            whole = await whole_id(there, event_id)
            await fetch(there, [whole], _UNFINISHED)
            if not dry_run:
                await past_locks(lambda: there.skip(whole, reason, by=whoami(by)))

    asyncio.run(work())
    _report("skip", 0 if dry_run else 1, 1, as_json=as_json, dry_run=dry_run)
    return ExitCode.OK


async def carry_out(url: Url, ids: Sequence[str], selection: Selection, order: Order) -> int:
    async with opened(shared_store(url)) as store:
        ids = [await whole_id(store, given) for given in ids]
        async with gently() as stop:
            if order.followers:
                states = order.states if State.DEAD not in order.states else (State.DEAD,)
                found = await with_followers(store, ids, states)
                chosen = [remember(record) for record in found]
            elif ids:
                chosen = [remember(record) for record in await fetch(store, ids, order.states)]
            else:
                chosen = await _look(store, selection, stop)
            if stop.asked:
                return ExitCode.INTERRUPTED
        if order.verb == "replay":
            chosen = await _without_replaced(store, chosen, ids)
        if not chosen:
            raise NotFoundError(f"no event matches {selection}; see: postroom list {_hint(order)}")
        _explain(chosen, order)
        if order.dry_run:
            _report(order.verb, 0, len(chosen), as_json=order.as_json, dry_run=True)
            return ExitCode.OK
        if len(chosen) > ASK_ABOVE and not order.yes:
            _ask(len(chosen), order)  # here a Ctrl-C takes effect immediately
        async with gently() as stop:
            if order.operate is not None and not ids:
                return await order.operate(store, len(chosen), stop)
            return await _work(store, chosen, order, stop)


async def _look(store: Store, selection: Selection, stop: Stop) -> list[Chosen]:
    chosen: list[Chosen] = []
    with progress("looking") as bar:
        async for record in walk(store, selection):
            chosen.append(remember(record))
            bar.add(1)
            if stop.asked:
                break
    return chosen


async def _without_replaced(
    store: Store, chosen: Sequence[Chosen], named: Sequence[str]
) -> list[Chosen]:
    """Leave out dead letters that were edited, which are never sent; raises if one was named."""
    edited = await replaced(store, chosen)
    for event_id, replaced_by in edited.items():
        if event_id in named:
            raise ReplacedError(event_id, replaced_by)
    if edited:
        left = f"{many(len(edited), 'dead letter')} left out: edited, and sent under another id"
        click.echo(left, err=True)
    return [event for event in chosen if event.id not in edited]


async def _work(store: Store, chosen: Sequence[Chosen], order: Order, stop: Stop) -> int:
    changed, at = 0, 0
    with progress(_DOING[order.verb], len(chosen)) as bar:
        while at < len(chosen) and not stop.asked:
            step = chosen if order.followers else chosen[at : at + STEP]  # one transaction
            ids = [event.id for event in step]
            changed += await past_locks(partial(order.work, store, ids))
            at += len(step)
            bar.add(len(step))
    _report(order.verb, changed, len(chosen), as_json=order.as_json, dry_run=False)
    if at == len(chosen):
        return ExitCode.OK
    left = f"{len(chosen) - at:,} events are unchanged; run the command again to continue"
    if order.copies:
        left += f", with the ids from {chosen[at].id} on"
    click.echo(f"interrupted: {left}", err=True)
    return ExitCode.INTERRUPTED


def _hint(order: Order) -> str:
    return f"--state {order.states[0]}"


def _explain(chosen: Sequence[Chosen], order: Order) -> None:
    if order.as_json:
        return
    keys = len({event.key_hash for event in chosen if event.keyed})
    size = sum(event.size for event in chosen)
    click.echo(
        f"{many(len(chosen), 'event')} of {many(keys, 'key')}, {size:,} bytes, {order.fate}",
        err=True,
    )
    for warning in order.warnings(chosen):
        click.echo(f"- {warning}", err=True)


def _to_order(chosen: Sequence[Chosen], *, new_id: bool) -> list[str]:
    """Return the effects of a replay on order and on inboxes (I6)."""
    effects = []
    if any(event.keyed for event in chosen):
        effects.append("order within a key is kept, but newer events of the key were sent earlier")
    if new_id:
        effects.append("copies with new ids: inboxes treat them as new events and handle them")
    else:
        effects.append("same ids: inboxes ignore events they have handled (--new-id sends copies)")
    return effects


def _ask(number: int, order: Order) -> None:
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{number:,} events need confirmation (more than {ASK_ABOVE}) and stdin is not a "
            "terminal; add --yes"
        )
    click.confirm(f"{order.verb} {many(number, 'event')}?", abort=True, err=True)


def _report(verb: str, changed: int, chosen: int, *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        print_json({"verb": verb, "chosen": chosen, "changed": changed, "dry_run": dry_run})
    elif dry_run:
        click.echo(f"would {verb} {many(chosen, 'event')}; nothing was changed")
    else:
        gone = chosen - changed
        note = f"; {gone:,} changed meanwhile or were not reached" if gone else ""
        click.echo(f"{_PAST[verb]} {many(changed, 'event')}{note}")


_DOING = {"replay": "replaying", "bury": "burying", "retry": "retrying", "purge": "purging"}
_PAST = {
    "replay": "replayed", "bury": "buried", "skip": "skipped", "retry": "made due",
    "purge": "deleted",
}  # fmt: skip
