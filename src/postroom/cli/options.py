"""Options that several commands share, parsing of durations and times, and printing of data."""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from postroom.cli.configuration import Configuration, load
from postroom.cli.variables import with_password_of
from postroom.errors import ConfigError, StoreError
from postroom.model.url import Url, seconds
from postroom.registry import load_store
from postroom.store import Store

F = TypeVar("F", bound=Callable[..., Any])

_PASSWORD_FILE = "POSTROOM_STORE_PASSWORD_FILE"  # noqa: S105 - a variable's name


@dataclass
class Mode:
    """The global options of this invocation."""

    debug: bool = False
    config: Path | None = None
    loaded: Configuration | None = None

    @property
    def configuration(self) -> Configuration:
        """Settings from the file and the environment, loaded on first use."""
        if self.loaded is None:
            self.loaded = load(self.config, os.environ)
        return self.loaded

    @property
    def unnamed_file(self) -> Path | None:
        """The configuration file, if it was found in the current folder without --config."""
        return self.configuration.source.path if self.config is None else None


def mode_of(ctx: click.Context) -> Mode:
    """Return the global options of this invocation."""
    return ctx.find_object(Mode) or Mode()


# -- parameters -------------------------------------------------------------------------------
def read_store(ctx: click.Context, param: click.Parameter, value: str | None) -> Url:
    """Return the store's URL from the option, the environment or the file.

    Errors do not repeat the URL: it may contain a password.
    """
    if value is None:
        found = mode_of(ctx).configuration.store()
        if found is None:
            raise click.UsageError(
                "Missing option '--store' (env var: 'POSTROOM_STORE', in postroom.toml: store).",
                ctx,
            )
        return found
    try:
        given = Url.parse(value)
        file = os.environ.get(_PASSWORD_FILE)
        return with_password_of(given, file, _PASSWORD_FILE) if file else given
    except ConfigError as error:
        raise click.BadParameter(f"{error}.", ctx, param) from error


def read_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Parse a number of seconds, 0 or more."""
    if value is None:
        return None
    try:
        return seconds(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not {error}.", ctx, param) from error


def reader(convert: Callable[[str], Any]) -> Callable[..., Any]:
    """Return a click callback around a converter that raises ValueError."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except ValueError as error:
            raise click.BadParameter(f"{value!r} is not {error}.", ctx, param) from error

    return read


def seconds_option(name: str, *arguments: str, text: str) -> Callable[[F], F]:
    """Return an option for a number of seconds."""
    return click.option(name, *arguments, callback=read_seconds, metavar="SECONDS", help=text)


store_option = click.option(
    "--store",
    callback=read_store,
    metavar="URL",
    help="Database URL, for example sqlite:///app.db.  [env var: POSTROOM_STORE]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would change; change nothing."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
reason_option = click.option(
    "--reason", required=True, metavar="TEXT", help="Reason, stored with the event."
)
by_option = click.option(
    "--by",
    metavar="NAME",
    envvar="POSTROOM_USER",
    help="Operator name for the audit entry.  [env var: POSTROOM_USER; default: user@host]",
)


def whoami(given: str | None) -> str:
    """Return the operator's name for the audit entry."""
    if given:
        return given
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


# -- stores and output ------------------------------------------------------------------------
def shared_store(url: Url) -> Store:
    """Return the store of a URL; raises ConfigError if only one process can see it."""
    store = load_store(url)
    if not store.capabilities.shared:
        raise ConfigError(
            f"{url} exists only inside one process and is empty here; "
            "pass the URL of the database that the relay serves"
        )
    return store


@contextmanager
def reaching(store: Store) -> Iterator[None]:
    """Add the store's URL and a hint to its connection errors."""
    try:
        yield
    except StoreError as error:
        url = store.url
        if url.startswith("sqlite:"):  # a file: its error names the cause
            raise
        raise StoreError(
            f"{url} is unreachable: {error}. Check the URL, that the server is running, and the "
            "user's permissions"
        ) from error


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    """Open a store and close it on exit."""
    with reaching(store):
        await store.open()
    try:
        yield store
    finally:
        await store.close()


def print_json(data: object, *, lines: bool = False) -> None:
    """Print data as JSON: indented, or on one line."""
    click.echo(json.dumps(data, indent=None if lines else 2))
