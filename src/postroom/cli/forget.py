"""`postroom forget`: erases the events of one key or one aggregate, for a privacy request."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import NamedTuple

import click

from postroom.admin.selection import Selection, walk
from postroom.admin.texts import many
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import (
    by_option,
    dry_run_option,
    json_option,
    opened,
    print_json,
    shared_store,
    store_option,
    whoami,
    yes_option,
)
from postroom.cli.progress import Stop, gently, progress
from postroom.commands import audit_entry
from postroom.engine.lock_retries import past_locks
from postroom.errors import ConfigError, NotFoundError
from postroom.lookup import Filter
from postroom.model.envelope import ID
from postroom.model.url import Url
from postroom.record import Record, State
from postroom.store import Store

STEP = 500  # events per transaction
_UNSENT = (State.PENDING, State.FAILED, State.PROCESSING)
_HASH_CHARS = 16


class Personal(NamedTuple):
    """The key or the aggregate whose events are erased."""

    key: str | None
    aggregate: tuple[str, str] | None

    @property
    def filter(self) -> Filter:
        return Filter() if self.key is None else Filter(key=self.key)

    def matches(self, record: Record) -> bool:
        if self.aggregate is None:
            return True
        return (record.aggregate_type, record.aggregate_id) == self.aggregate

    @property
    def about(self) -> str:
        """A text for the audit entry that does not repeat it."""
        text = self.key if self.aggregate is None else "\0".join(self.aggregate)
        kind = "key" if self.aggregate is None else "aggregate"
        return f"{kind} with the sha256 {sha256((text or '').encode()).hexdigest()[:_HASH_CHARS]}"


class _Found(NamedTuple):
    id: str
    state: str
    numbered: bool
    message_id: str | None  # of a message that a consumer stored


@click.command(short_help="Erase the events of a key or an aggregate.")
@store_option
@click.option("--key", help="Erase the events of this key.")
@click.option("--aggregate", nargs=2, metavar="TYPE ID", help="Erase the events of this aggregate.")
@click.option("--unsent", is_flag=True, help="Also erase events that were not sent: they are lost.")
@by_option
@dry_run_option
@yes_option
@json_option
def forget(
    store: Url,
    key: str | None,
    aggregate: tuple[str, str] | None,
    unsent: bool,
    by: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Erase the events of one key or one aggregate, for a privacy request.

    Deletes them from outbox, dead letters and stored messages, with payload, headers, errors and
    history, in all streams. Inbox rows keep ids and types, so that a redelivery is recognized. The
    audit entry has a hash of the key. --key uses an index; --aggregate reads all events, page by
    page. Refuses events that were not sent, unless --unsent is given.

    \b
    Examples:
      postroom forget --key customer-7 --dry-run
      postroom forget --key customer-7 --yes
      postroom forget --aggregate customer 7 --unsent
    """  # noqa: D301 - click knows the sign
    if (key is None) == (not aggregate):
        raise click.UsageError("Give --key or --aggregate, one of the two.")
    whose = Personal(key, aggregate or None)
    return asyncio.run(
        _forget(store, whose, whoami(by), unsent=unsent, dry_run=dry_run, yes=yes, as_json=as_json)
    )


async def _forget(
    url: Url, whose: Personal, who: str, *, unsent: bool, dry_run: bool, yes: bool, as_json: bool
) -> int:
    async with opened(shared_store(url)) as store:
        async with gently() as stop:
            found = await _look(store, whose, stop)
            if stop.asked:
                return ExitCode.INTERRUPTED
        counts = Counter(one.state for one in found)
        if not as_json:
            listed = ", ".join(f"{number:,} {state}" for state, number in sorted(counts.items()))
            told = f": {listed}" if listed else ""
            click.echo(f"{many(len(found), 'event')} to be erased{told}", err=True)
        _refuse(found, unsent=unsent)
        if gaps := sum(one.numbered and one.state == State.DEAD for one in found):
            click.echo(
                f"- {gaps:,} of them are dead letters of strict order that were not skipped: "
                "consumers wait for their numbers",
                err=True,
            )
        if found and not dry_run and not yes:
            _ask(len(found))
        erased = 0
        async with gently() as stop:
            if not dry_run:
                erased = await _erase(store, found, whose.about, who, stop)
    if as_json:
        facts = {"chosen": len(found), "states": dict(counts), "erased": erased}
        print_json({**facts, "dry_run": dry_run})
    elif dry_run:
        click.echo(f"would erase {many(len(found), 'event')}; nothing was changed")
    else:
        click.echo(f"erased {many(erased, 'event')}")
    if dry_run or erased == len(found):
        return ExitCode.OK
    if stop.asked:
        return ExitCode.INTERRUPTED
    raise NotFoundError(
        f"{many(len(found) - erased, 'event')} changed meanwhile and may still be there; run the "
        "command again"
    )


async def _look(store: Store, whose: Personal, stop: Stop) -> list[_Found]:
    found = []
    with progress("looking") as bar:
        async for record in walk(store, Selection(whose.filter)):
            bar.add(1)
            if whose.matches(record):
                message_id = None if record.flaw else record.headers.get(ID)
                found.append(_Found(record.id, record.state, bool(record.kseq), message_id))
            if stop.asked:
                break
    return found


def _refuse(found: Sequence[_Found], *, unsent: bool) -> None:
    waiting = [one for one in found if one.state in _UNSENT]
    if waiting and not unsent:
        raise ConfigError(
            f"{many(len(waiting), 'event')} of these were not sent, and erasing loses them: wait "
            "until they are sent, or add --unsent"
        )
    if numbered := sum(one.numbered for one in waiting):
        raise ConfigError(
            f"{many(numbered, 'unsent event')} of strict order: consumers would wait for their "
            "numbers for ever. Skip them first (postroom skip), and let the markers be sent"
        )


def _ask(number: int) -> None:
    if not sys.stdin.isatty():
        raise ConfigError("erasing needs confirmation and stdin is not a terminal; add --yes")
    click.confirm(f"erase {many(number, 'event')} for good?", abort=True, err=True)


async def _erase(store: Store, found: Sequence[_Found], about: str, who: str, stop: Stop) -> int:
    """Erase in steps. Unsent events become dead letters first, the newest first: no follower of a
    failed event is sent meanwhile.
    """
    waiting = [one.id for one in found if one.state in _UNSENT][::-1]
    for at in range(0, len(waiting), STEP):
        if stop.asked:
            return 0
        step = waiting[at : at + STEP]
        # Ids may be personal: the entry has none, and is written first, so that none is missing.
        entry = audit_entry(who, "bury", len(step), (), f"to be erased: {about}")
        await store.record_audit(entry)
        await past_locks(partial(store.bury, step, "to be erased"))
    erased = 0
    with progress("erasing", len(found)) as bar:
        for at in range(0, len(found), STEP):
            if stop.asked:
                break
            part = found[at : at + STEP]
            ids = [one.id for one in part]
            messages = [one.message_id for one in part if one.message_id is not None]
            accepted = [*ids, *messages]
            erased += await past_locks(partial(store.forget, ids, about, accepted=accepted, by=who))
            bar.add(len(part))
    return erased
