"""`postroom migrate`."""

from __future__ import annotations

import asyncio

import click

from postroom.cli.options import json_option, print_json, shared_store, store_option
from postroom.url import Url


@click.command()
@store_option
@json_option
def migrate(store: Url, as_json: bool) -> None:
    """Create the tables, or bring them up to date.

    It may be run again at any time, and by many processes at once.

    \b
    Example:
      postroom migrate --store sqlite:///app.db
    """  # noqa: D301 - click knows the sign
    reached = asyncio.run(shared_store(store).migrate())
    if as_json:
        print_json({"store": str(store), "version": reached})
    else:
        click.echo(f"{store} is at version {reached}")
