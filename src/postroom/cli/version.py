"""`postroom version`."""

from __future__ import annotations

import platform
import sqlite3

import click

from postroom._version import __version__
from postroom.cli.options import json_option, print_json


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the versions of postroom, Python and SQLite.

    \b
    Example:
      postroom version --json
    """  # noqa: D301 - click knows the sign
    versions = {
        "postroom": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    if as_json:
        print_json(versions)
    else:
        click.echo(f"postroom {__version__}")
        click.echo(f"Python {versions['python']}, SQLite {versions['sqlite']}")
