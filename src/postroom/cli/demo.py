"""`postroom demo`."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from postroom.cli.dashboard import serve_here
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import json_option
from postroom.demo.crew import DemoError
from postroom.demo.screen import Screen
from postroom.demo.stage import Play, Stage, check
from postroom.errors import ConfigError

_HEAD = """\
A shop takes orders and adds an event for each change in the same transaction;
one order in eight rolls back on purpose. A relay delivers the events to a
receiver and is killed half-way. A second relay takes over.
"""
_TABLE_HEAD = """
The checker compared shop.db with receiver.db, independently of the relays:
"""
_GOOD = """
Exactly the events of committed orders were delivered. The killed relay caused
duplicate deliveries, which the receiver's inbox ignored.

Next: README.md lists the guarantees. In src/postroom/demo, shop.py and
receiver.py show application code, and wire.py shows a broker adapter.
"""


@click.command(short_help="Run a demonstration with a relay that is killed.")
@click.option(
    "--orders",
    type=click.IntRange(1, 9_999),
    default=400,
    show_default=True,
    help="Number of orders, with 5 events each.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep databases and logs in this folder.  [default: a temporary one]",
)
@click.option(
    "--seed", type=int, help="Seed; the same seed creates the same orders.  [default: random]"
)
@click.option(
    "--dashboard",
    "with_dashboard",
    is_flag=True,
    help="Serve the dashboard of a shop with faults, until Ctrl-C.",
)
@json_option
@click.pass_context
def demo(
    ctx: click.Context,
    orders: int,
    folder: Path | None,
    seed: int | None,
    with_dashboard: bool,
    as_json: bool,
) -> None:
    """Run a demonstration: orders, a relay that is killed, and a checker. About half a minute.

    Uses four processes and two SQLite files; no server is needed. Exit code 1 if an event was lost
    or applied twice.

    \b
    Examples:
      postroom demo --orders 100 --dir /tmp/demo
      postroom demo --dashboard
    """  # noqa: D301 - click knows the sign
    if with_dashboard:
        with _folder(folder) as (path, _):
            ctx.exit(asyncio.run(_look_at(path)))
    seed = random.randrange(1_000_000) if seed is None else seed
    screen = Screen()
    with _folder(folder) as (path, keep):
        code = asyncio.run(_play(Play(path, orders, seed), screen, as_json=as_json))
        if code != 0:
            keep()
            screen.news(f"Please report this with --seed {seed} and the files in {path}")
        elif not as_json:
            click.echo(_GOOD, nl=False)
    ctx.exit(ExitCode.BROKEN if code else ExitCode.OK)


async def _look_at(path: Path) -> int:
    """Serve the dashboard of a shop with faults."""
    from postroom.demo import faults

    logging.getLogger("postroom").setLevel(logging.CRITICAL)  # its faults are on the page
    async with faults.running(path / "shop.db") as store:
        return await serve_here(store, "shop")


async def _play(play: Play, screen: Screen, *, as_json: bool) -> int:
    # SIGTERM, like Ctrl-C, must end the child processes and remove the folder.
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
    """Yield the folder for the files, and a function that keeps the folder on exit."""
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
        raise DemoError(f"{error.message}; the files are in {path}") from error
    finally:
        if not kept:
            shutil.rmtree(path, ignore_errors=True)
