"""`postroom dead`: dead letters by what killed them. `postroom audit`: who did what."""

from __future__ import annotations

import asyncio

import click

from postroom.cli.listing import cut, instant
from postroom.cli.options import json_option, opened, print_json, shared_store, store_option
from postroom.fingerprint import Group, group
from postroom.record import State
from postroom.store import MAX_CAUSES, Deed
from postroom.url import Url


@click.command()
@store_option
@click.option("--stream", help="Only this stream.")
@json_option
def dead(store: Url, stream: str | None, as_json: bool) -> None:
    """Group dead letters by type and error.

    Ids, times and numbers in an error do not count, so that one trouble is one group. Look at a
    group with `list --group`, send it again with `replay --group`.

    \b
    Examples:
      postroom dead --stream main
      postroom replay --group 3f2a91c0 --dry-run
    """  # noqa: D301 - click knows the sign
    groups, left_out = asyncio.run(_groups(store, stream))
    if as_json:
        for one in groups:
            print_json(_facts(one), lines=True)
    elif groups:
        click.echo(f"{'group':<8}  {'count':>9}  {'type':<26}  first and last death (UTC)")
        for one in groups:
            click.echo("\n".join(_lines(one)))
        first = groups[0].id
        click.echo(
            f"look: postroom list --group {first}; send again: postroom replay --group {first}",
            err=True,
        )
    else:
        click.echo(f"no dead letters in {store}", err=True)
    if left_out:
        click.echo(
            f"{left_out:,} more dead letters are in no group: only the {MAX_CAUSES:,} most "
            "frequent errors are counted. See them by `postroom list --state dead`",
            err=True,
        )


async def _groups(url: Url, stream: str | None) -> tuple[list[Group], int]:
    """Return the groups, and how many dead letters have errors that are too many to look at."""
    async with opened(shared_store(url)) as store:
        causes = await store.causes(stream, MAX_CAUSES)
        if len(causes) < MAX_CAUSES:
            return group(causes), 0
        dead = (await store.stats(stream)).counts[State.DEAD]
        return group(causes), max(0, dead - sum(cause.how_many for cause in causes))


def _facts(one: Group) -> dict[str, object]:
    facts = one._asdict()
    return {
        "group": facts["id"],
        "count": facts["how_many"],
        "type": facts["type"],
        "pattern": facts["pattern"],
        "example": facts["example"],
        "first_at": instant(one.first_us),
        "last_at": instant(one.last_us),
    }


def _lines(one: Group) -> list[str]:
    first, last = _minute(one.first_us), _minute(one.last_us)
    died = f"{first} … {last.removeprefix(first[:5])}"
    return [
        f"{one.id}  {one.how_many:>9,}  {cut(one.type, 26):<26}  {died}",
        f"          {cut(one.pattern, 70)}",
    ]


def _minute(microseconds: int) -> str:
    text = str(instant(microseconds))
    return text[:16].replace("T", " ") if text.endswith("Z") else text


@click.command(short_help="List what people did: replay, bury, skip, prune.")
@store_option
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many."
)
@json_option
def audit(store: Url, limit: int, as_json: bool) -> None:
    """List what people did: replay, bury, skip, prune; the last first.

    \b
    Example:
      postroom audit --limit 100
    """  # noqa: D301 - click knows the sign
    deeds = asyncio.run(_deeds(store, limit))
    for deed in deeds:
        at = instant(deed.at_us)
        if as_json:
            facts = deed._asdict()
            del facts["at_us"]
            print_json({"at": at, **facts}, lines=True)
        else:
            click.echo(
                f"{str(at)[:19]:<19}Z  {cut(deed.what, 6):<6}  {deed.how_many:>7,}  "
                f"{cut(deed.who, 41)}"
            )
            click.echo(f"    {cut(deed.about, 76)}")
    if not deeds and not as_json:
        click.echo("nobody has done anything yet", err=True)


async def _deeds(url: Url, limit: int) -> list[Deed]:
    async with opened(shared_store(url)) as store:
        return await store.deeds(limit)
