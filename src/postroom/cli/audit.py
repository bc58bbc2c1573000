"""`postroom audit`: the audit log."""

from __future__ import annotations

import asyncio

import click

from postroom.admin.texts import cut, instant
from postroom.cli.options import json_option, opened, print_json, shared_store, store_option
from postroom.commands import AuditEntry
from postroom.model.url import Url


@click.command(short_help="List audit entries of operators.")
@store_option
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum entries."
)
@json_option
def audit(store: Url, limit: int, as_json: bool) -> None:
    """List audit entries of operators' commands, newest first.

    \b
    Example:
      postroom audit --limit 100
    """  # noqa: D301 - click knows the sign
    audit_log = asyncio.run(_entries(store, limit))
    for entry in audit_log:
        at = instant(entry.at_us)
        if as_json:
            facts = entry._asdict()
            del facts["at_us"]
            print_json({"at": at, **facts}, lines=True)
        else:
            click.echo(
                f"{str(at)[:19]:<19}Z  {cut(entry.what, 16):<16}  {entry.how_many:>7,}  "
                f"{cut(entry.who, 31)}"
            )
            click.echo(f"    {cut(entry.about, 76)}")
    if not audit_log and not as_json:
        click.echo("no audit entries", err=True)


async def _entries(url: Url, limit: int) -> list[AuditEntry]:
    async with opened(shared_store(url)) as store:
        return await store.audit_log(limit)
