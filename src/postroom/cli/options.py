"""What commands share: URLs as parameters, seconds, and the output of data."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click

from postroom.errors import ConfigError
from postroom.store import Store
from postroom.url import Url, seconds
from postroom.wiring import load_store

F = TypeVar("F", bound=Callable[..., Any])


def read_url(ctx: click.Context, param: click.Parameter, value: str) -> Url:
    """Read the URL of a store or broker. The error does not repeat it: it may hold a secret."""
    try:
        return Url.parse(value)
    except ConfigError as error:
        raise click.BadParameter(f"{error}.", ctx, param) from error


def read_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Read a number of seconds, 0 or more."""
    if value is None:
        return None
    try:
        return seconds(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not {error}.", ctx, param) from error


def seconds_option(
    name: str, *arguments: str, default: float | None = None, text: str
) -> Callable[[F], F]:
    """Return an option for a number of seconds."""
    return click.option(
        name,
        *arguments,
        callback=read_seconds,
        metavar="SECONDS",
        default=None if default is None else f"{default:g}",
        show_default=default is not None,
        help=text,
    )


store_option = click.option(
    "--store",
    callback=read_url,
    metavar="URL",
    required=True,
    envvar="POSTROOM_STORE",
    show_envvar=True,
    help="The database, as in sqlite:///app.db.",
)
broker_option = click.option(
    "--broker",
    callback=read_url,
    metavar="URL",
    required=True,
    envvar="POSTROOM_BROKER",
    show_envvar=True,
    help="The destination, as in handlers:shop.app:handlers.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def shared_store(url: Url) -> Store:
    """Return the store of a URL, if other processes can see it at all."""
    store = load_store(url)
    if not store.capabilities.shared:
        raise ConfigError(
            f"{url} lives within one process: there is nothing to see from here. "
            "Name the database that the relay serves"
        )
    return store


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    """Open a store, and close it at the end."""
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def print_json(data: object, *, lines: bool = False) -> None:
    """Print data for programs: indented, or one line each."""
    click.echo(json.dumps(data, indent=None if lines else 2))
