"""Progress bars on a terminal, and a Ctrl-C that takes effect between two steps."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import click


class Stop:
    """Set by the first Ctrl-C; a second one ends the process immediately."""

    def __init__(self) -> None:
        self.asked = False


@asynccontextmanager
async def gently() -> AsyncIterator[Stop]:
    """Let the current step finish before a Ctrl-C takes effect."""
    stop, loop = Stop(), asyncio.get_running_loop()

    def on_signal() -> None:
        stop.asked = True
        loop.remove_signal_handler(signal.SIGINT)  # the next one raises KeyboardInterrupt
        click.echo("stopping after this step; press Ctrl-C again to stop immediately", err=True)

    loop.add_signal_handler(signal.SIGINT, on_signal)
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)


class Bar:
    """A progress bar on stderr."""

    def __init__(self, doing: str, total: int | None) -> None:
        self._doing = doing
        self._total = total
        self._done = 0
        self._shown = sys.stderr.isatty()
        self._drawn = ""

    def add(self, steps: int) -> None:
        self._done += steps
        if not self._shown or (self._total is None and self._done % 100):
            return
        if self._total:
            filled = min(30, 30 * self._done // self._total)
            share = f" {100 * self._done // self._total:>3} %"
            text = f"{self._doing} [{'#' * filled}{'-' * (30 - filled)}]{share} {self._done:,}"
        else:
            text = f"{self._doing} {self._done:,}"
        if text != self._drawn:
            self._drawn = text
            click.echo(f"\r{text}", nl=False, err=True)

    def clear(self) -> None:
        if self._drawn:
            click.echo("\r" + " " * len(self._drawn) + "\r", nl=False, err=True)


@contextmanager
def progress(doing: str, total: int | None = None) -> Iterator[Bar]:
    """Show a progress bar while the body runs."""
    bar = Bar(doing, total)
    try:
        yield bar
    finally:
        bar.clear()
