"""`postroom migrate`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import click

from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import json_option, print_json, reaching, shared_store, store_option
from postroom.cli.progress import gently, progress
from postroom.errors import ConfigError
from postroom.model.url import Url
from postroom.search import OPTIONAL
from postroom.store import AdoptingStore, Store


@click.command()
@click.argument("what", type=click.Choice(["up", "status", "sql", "adopt"]), default="up")
@store_option
@click.option(
    "--from",
    "from_version",
    type=click.IntRange(min=0),
    help="With sql: print the migrations after this version, without connecting to the store.",
)
@click.option(
    "--no-transaction",
    is_flag=True,
    help="With sql: no BEGIN and COMMIT, for a tool that opens the transaction.",
)
@click.option(
    "--index",
    "index",
    type=click.Choice(list(OPTIONAL)),
    help="With up: create this optional index, too.",
)
@click.option(
    "--drop-index", type=click.Choice(list(OPTIONAL)), help="With up: drop this optional index."
)
@click.option("--table", help="With adopt: table whose rows move into the outbox.")
@click.option("--topic", help="With adopt: topic of the events.  [default: outbox_events]")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    metavar="NAME=STATE",
    help="With adopt: map a status of the old table to pending, failed, done or dead.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME=COLUMN",
    help="With adopt, on PostgreSQL: the old table's name for a column.",
)
@click.option("--force", is_flag=True, help="With adopt: run even while relays serve the stream.")
@json_option
def migrate(
    what: str,
    store: Url,
    from_version: int | None,
    no_transaction: bool,
    index: str | None,
    drop_index: str | None,
    table: str | None,
    topic: str | None,
    statuses: tuple[str, ...],
    columns: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> int:
    """Create or update the tables.

    \b
    up      apply the migrations (default)
    status  print the schema version; exit code 1 if it is not the newest
    sql     print the statements of `up`, to be run by hand
    adopt   move the rows of another program's outbox table

    `up` is idempotent and safe to run from several processes at once.

    The index `correlation` lets `list` and `story` find events by correlation and causation id at
    once. Writers go on while it is built, except on SQLite; every event that has these ids then
    costs more to add.

    \b
    Examples:
      postroom migrate --store sqlite:///app.db
      postroom migrate status --store sqlite:///app.db
      postroom migrate sql --store sqlite:///app.db > postroom.sql
      postroom migrate sql --from 0 --no-transaction --store postgresql:///shop
      postroom migrate --index correlation
      postroom migrate adopt --table outbox --status published=done
      postroom migrate adopt --table outbox --column event_type=kind
    """  # noqa: D301 - click knows the sign
    if from_version is not None and what != "sql":
        raise click.UsageError("--from is only valid with `migrate sql`")
    if no_transaction and what != "sql":
        raise click.UsageError("--no-transaction is only valid with `migrate sql`")
    if (index or drop_index) and what != "up":
        raise click.UsageError("--index and --drop-index are only valid with `migrate up`")
    if index is not None and index == drop_index:
        raise click.UsageError("--index and --drop-index name the same index")
    given = {
        "topic": topic,
        "statuses": dict(_pair("--status", text, "published=done") for text in statuses),
        "columns": dict(_pair("--column", text, "event_type=kind") for text in columns),
        "force": force,
    }
    options = {name: value for name, value in given.items() if value}
    if (table is None) == (what == "adopt") or (options and what != "adopt"):
        raise click.UsageError(
            "`migrate adopt` requires --table; --table, --topic, --status, --column and --force "
            "are only valid with it"
        )
    chosen = shared_store(store)
    with reaching(chosen):
        match what:
            case "up":
                changes = {index: True, drop_index: False}
                return _up(chosen, store, {n: c for n, c in changes.items() if n}, as_json=as_json)
            case "status":
                return _status(chosen, store, as_json=as_json)
            case "sql":
                return _sql(chosen, from_version, transaction=not no_transaction, as_json=as_json)
            case _:
                return asyncio.run(_adopt(chosen, table or "", options, as_json=as_json))


def _up(store: Store, url: Url, indexes: Mapping[str, bool], *, as_json: bool) -> int:
    async def work() -> tuple[int, dict[str, bool]]:
        reached = await store.migrate()
        return reached, {
            name: await store.search.set_index(name, present=present)
            for name, present in indexes.items()
        }

    reached, changed = asyncio.run(work())
    if as_json:
        named = {name: "present" if present else "absent" for name, present in indexes.items()}
        print_json({"store": str(url), "version": reached, **({"indexes": named} if named else {})})
        return ExitCode.OK
    click.echo(f"{url} is at version {reached}")
    for name, present in indexes.items():
        was = "" if changed[name] else "already "
        click.echo(f"the index {name} {'is ' + was + 'there' if present else 'is ' + was + 'gone'}")
    return ExitCode.OK


def _status(store: Store, url: Url, *, as_json: bool) -> int:
    found = asyncio.run(store.schema())
    up_to_date = found.current == found.newest
    if as_json:
        print_json({"store": str(url), **found._asdict(), "up_to_date": up_to_date})
    elif up_to_date:
        click.echo(f"{url} is at version {found.current}, the newest")
    elif found.current > found.newest:
        click.echo(f"{url} is at version {found.current}; this postroom knows only {found.newest}")
    else:
        there = f"is at version {found.current}" if found.current else "has no postroom tables"
        click.echo(f"{url} {there}; the newest is {found.newest}: postroom migrate --store {url}")
    return ExitCode.OK if up_to_date else ExitCode.BROKEN


def _sql(store: Store, from_version: int | None, *, transaction: bool, as_json: bool) -> int:
    after = asyncio.run(store.schema()).current if from_version is None else from_version
    script = store.migration_sql(after, transaction=transaction)
    if as_json:
        print_json({"after": after, "sql": script})
    elif script:
        click.echo(script.rstrip())
    else:
        click.echo("-- nothing to do: the tables are up to date")
    return ExitCode.OK


def _pair(option: str, text: str, example: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name or not value:
        raise click.UsageError(f"{option} {text!r}: write it as {option} {example}")
    return name, value


async def _adopt(store: Store, table: str, options: dict[str, Any], *, as_json: bool) -> int:
    if not store.capabilities.adopts:
        raise ConfigError(
            f"{store.url} does not support `migrate adopt`; PostgreSQL, MySQL and MariaDB do"
        )
    adopting = cast("AdoptingStore", store)
    await store.open()
    try:
        async with gently() as stop:
            with progress(f"adopting {table}") as bar:

                def on_moved(rows: int) -> None:
                    bar.add(rows)
                    if stop.asked:
                        raise KeyboardInterrupt

                moved, left = await adopting.adopt(table, on_moved=on_moved, **options)
    finally:
        await store.close()
    if as_json:
        print_json({"table": table, "moved": moved, "left": left})
    else:
        rest = f"; {left:,} are left in {table}" if left else ""
        click.echo(f"moved {moved:,} rows of {table} into the outbox{rest}")
    return ExitCode.OK
