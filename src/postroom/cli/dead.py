"""`postroom dead`: dead letters grouped by cause."""

from __future__ import annotations

import asyncio

import click

from postroom.admin.texts import cut, instant
from postroom.cli.options import json_option, opened, print_json, shared_store, store_option
from postroom.lookup import MAX_CAUSES
from postroom.model.dead_letters import Group, group
from postroom.model.url import Url
from postroom.record import State


@click.command()
@store_option
@click.option("--stream", help="Only this stream.")
@json_option
def dead(store: Url, stream: str | None, as_json: bool) -> None:
    """Group dead letters by type and error.

    Ids, times and numbers in an error are ignored, so that one cause is one group. `list --group`
    lists a group, `replay --group` sends it again.

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
        click.echo(f"{'group':<8}  {'count':>9}  {'type':<26}  first and last (UTC)")
        for one in groups:
            click.echo("\n".join(_lines(one)))
        first = groups[0].id
        click.echo(
            f"list: postroom list --group {first}; replay: postroom replay --group {first}",
            err=True,
        )
    else:
        click.echo(f"no dead letters in {store}", err=True)
    if left_out:
        click.echo(
            f"{left_out:,} more dead letters are not grouped: only the {MAX_CAUSES:,} most "
            "frequent errors are counted. List all: postroom list --state dead",
            err=True,
        )


async def _groups(url: Url, stream: str | None) -> tuple[list[Group], int]:
    """Return the groups, and the number of dead letters beyond the maximum of causes."""
    async with opened(shared_store(url)) as store:
        dead_causes = await store.dead_causes(stream, MAX_CAUSES)
        if len(dead_causes) < MAX_CAUSES:
            return group(dead_causes), 0
        dead = (await store.stats(stream)).counts[State.DEAD]
        return group(dead_causes), max(0, dead - sum(cause.how_many for cause in dead_causes))


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
