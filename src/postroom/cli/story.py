"""`postroom story`: the events that one caused another, over the stores of several services."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from postroom.admin.story import CHILDREN, LIMIT, Asked, gather, merge
from postroom.admin.story_tree import Story, mermaid, render, to_json
from postroom.admin.texts import one_line
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import json_option, mode_of, opened, print_json, shared_store
from postroom.cli.selection import MAX_CANDIDATES, SHORTEST_BEGINNING, only_one
from postroom.errors import ConfigError, NotFoundError
from postroom.model.url import Url
from postroom.store import Tables


def _read_stores(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> list[Url]:
    found = list(values)
    if not found:
        known = mode_of(ctx).configuration.get("store").value
        if known is None:
            raise click.UsageError(
                "Missing option '--store' (env var: 'POSTROOM_STORE', in postroom.toml: store).",
                ctx,
            )
        found = [known]
    try:
        return [Url.parse(one) for one in dict.fromkeys(found)]
    except ConfigError as error:
        raise click.BadParameter(f"{error}.", ctx, param) from error


@click.command(short_help="Show what an event caused, over several stores.")
@click.argument("event_id", metavar="CORRELATION_ID|EVENT_ID")
@click.option(
    "--store",
    "stores",
    multiple=True,
    callback=_read_stores,
    metavar="URL",
    help="Database URL; repeat it for each service.  [env var: POSTROOM_STORE]",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=LIMIT,
    show_default=True,
    help="Maximum events of each store.",
)
@click.option(
    "--children",
    type=click.IntRange(min=1),
    default=CHILDREN,
    show_default=True,
    help="Maximum events to show that one event has caused.",
)
@click.option("--mermaid", "as_mermaid", is_flag=True, help="Print a Mermaid flowchart.")
@json_option
def story(
    event_id: str,
    stores: list[Url],
    limit: int,
    children: int,
    as_mermaid: bool,
    as_json: bool,
) -> int:
    """Show the tree of events that one caused another, over the stores of several services.

    Times are those between an event and its cause. An event that another service keeps in its
    durable inbox is one entry with two places. Causes that no store has are named. Exit code 3 if a
    store is unreachable; the others are shown.

    \b
    Examples:
      postroom story order-created-42
      postroom story order-42 --store $ORDERS --store $PAYMENTS
      postroom story order-created-42 --mermaid
    """  # noqa: D301 - click knows the sign
    if as_json and as_mermaid:
        raise click.UsageError("Give --json or --mermaid, not both.")
    found, failed = asyncio.run(gather(_asked(stores), event_id, limit))
    told = Story(merge(found))
    if not told.events and not failed and (whole := asyncio.run(_whole_id(stores, event_id))):
        event_id = whole
        found, failed = asyncio.run(gather(_asked(stores), event_id, limit))
        told = Story(merge(found))
    notes = list(dict.fromkeys(note for one in found for note in one.notes))
    if not told.events and not failed:
        names = ", ".join(map(str, stores))
        raise NotFoundError(f"no event with id or correlation id {event_id!r} in {names}")
    if as_json:
        print_json(
            {
                "asked": event_id,
                "events": to_json(told),
                "notes": notes,
                "unreachable": [{"store": url, "error": error} for url, error in failed.items()],
            }
        )
    elif as_mermaid:
        click.echo("\n".join(mermaid(told, children)))
    elif told.events:
        click.echo("\n".join([told.summary(), *render(told, children)]))
    if not as_json:
        for note in notes:
            click.echo(note, err=True)
    for url, error in failed.items():
        click.echo(f"{url} is not in this story: {one_line(error)}", err=True)
    return ExitCode.STORE if failed else ExitCode.OK


async def _whole_id(urls: Sequence[Url], given: str) -> str | None:
    """Return the only id in these stores that begins with this text."""
    found: dict[str, None] = {}
    if len(given) >= SHORTEST_BEGINNING:
        for url in urls:
            async with opened(shared_store(url)) as store:
                found |= dict.fromkeys(await store.search.ids(given, MAX_CANDIDATES + 1))
    return only_one(given, list(found))


def _asked(urls: Sequence[Url]) -> list[Asked]:
    chosen = [(url, shared_store(url)) for url in urls]  # a wrong URL is an error of the caller
    labels = _labels([(url, store.tables) for url, store in chosen])
    return [
        Asked(str(url), label, store) for (url, store), label in zip(chosen, labels, strict=True)
    ]


def _labels(stores: Sequence[tuple[Url, Tables]]) -> list[str]:
    """Return a short name for each store: its database, with the prefix of its tables."""
    found: list[str] = []
    for url, tables in stores:
        name = url.path.rstrip("/").rpartition("/")[2].removesuffix(".db") or str(url.scheme)
        if tables.prefix != Tables().prefix:
            name = f"{tables.prefix.strip('_')}"
        found.append(name if name not in found else f"{name} {len(found) + 1}")
    return found
