"""`postroom demo`."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import json_option
from postroom.demo.crew import DemoError
from postroom.demo.screen import Screen
from postroom.demo.stage import Play, Stage, check
from postroom.errors import ConfigError

_HEAD = """\
A shop takes orders and adds an event for each change, in the same transaction;
one in eight rolls back on purpose. A relay delivers the events to a receiver
and is killed half-way. Another one takes over.
"""
_TABLE_HEAD = """
What the checker finds in shop.db and receiver.db; it did not ask the relays:
"""
_GOOD = """
Events left with their orders' transactions and with no other; a relay died at
a bad moment, and all that the receiver got of it were repeats, which its inbox
let pass without effect.

Next: README.md has the promises. In src/postroom/demo, shop.py and
receiver.py are what your code would look like, wire.py is how a broker is made.
"""


@click.command()
@click.option(
    "--orders",
    type=click.IntRange(1, 9_999),
    default=400,
    show_default=True,
    help="Of 5 events each.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep databases and logs in this folder.  [default: a temporary one]",
)
@click.option("--seed", type=int, help="The same seed makes the same orders.  [default: random]")
@json_option
@click.pass_context
def demo(
    ctx: click.Context, orders: int, folder: Path | None, seed: int | None, as_json: bool
) -> None:
    """See it work: orders, a relay that is killed, and a checker. About half a minute.

    Four processes and two SQLite files; nothing needs to be installed. The exit code is 1 if any
    promise was broken.

    \b
    Example:
      postroom demo --orders 100 --dir /tmp/demo
    """  # noqa: D301 - click knows the sign
    seed = random.randrange(1_000_000) if seed is None else seed
    screen = Screen()
    with _folder(folder) as (path, keep):
        code = asyncio.run(_play(Play(path, orders, seed), screen, as_json=as_json))
        if code != 0:
            keep()
            screen.news(f"Please report it, with --seed {seed} and what is in {path}")
        elif not as_json:
            click.echo(_GOOD, nl=False)
    ctx.exit(ExitCode.BROKEN if code else ExitCode.OK)


async def _play(play: Play, screen: Screen, *, as_json: bool) -> int:
    # A terminated stage must end its children and remove its folder, as one that is interrupted.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        screen.news(_HEAD)
        await Stage(play, screen).play()
        if not as_json:
            click.echo(_TABLE_HEAD)
        return await check(play, as_json=as_json)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@contextmanager
def _folder(given: Path | None) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Give the folder for the files, and a function that keeps it from being removed."""
    if given is not None:
        try:
            given.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--dir: {error}; name another folder") from error
        if any(given.iterdir()):
            raise ConfigError(f"--dir: {given} is not empty; name a new folder")
        yield given, lambda: None
        return
    path = Path(tempfile.mkdtemp(prefix="postroom-demo-"))
    kept = False

    def keep() -> None:
        nonlocal kept
        kept = True

    try:
        yield path, keep
    except DemoError as error:
        keep()
        raise DemoError(f"{error.message}; its files are in {path}") from error
    finally:
        if not kept:
            shutil.rmtree(path, ignore_errors=True)
