"""`postroom run`: a relay as a process."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from dataclasses import asdict

import click

from postroom._version import __version__
from postroom.cli.exits import ExitCode
from postroom.cli.options import broker_option, seconds_option, store_option
from postroom.config import RelaySettings
from postroom.engine.relay import Relay
from postroom.retry import RetryPolicy
from postroom.telemetry.log import LOGGER, LogObserver, line
from postroom.url import Url
from postroom.wiring import load_broker, load_store

_DEFAULTS = RelaySettings()
_LEVELS = ("debug", "info", "warning", "error")


class Watched(Relay):
    """A relay that says when it begins to stop."""

    async def stop(self) -> None:
        if self.is_running:
            what = "finishing what is in flight; a second signal stops at once"
            logging.getLogger(LOGGER).info("%s", line("stopping", {"now": what}))
        await super().stop()


@click.command()
@store_option
@broker_option
@click.option("--stream", default=_DEFAULTS.stream, show_default=True, help="The stream to serve.")
@click.option(
    "--batch-size",
    type=int,
    default=_DEFAULTS.batch_size,
    show_default=True,
    help="So many events in one read when little is going on …",
)
@click.option(
    "--max-batch-size",
    type=int,
    help="… and up to so many when there is a backlog.  [default: 1000, or the batch size]",
)
@seconds_option(
    "--poll-seconds",
    default=_DEFAULTS.poll_seconds,
    text="The longest wait between two looks.",
)
@click.option(
    "--max-attempts",
    type=int,
    default=_DEFAULTS.retry.max_attempts,
    show_default=True,
    help="An event that failed so often becomes a dead letter.",
)
@seconds_option(
    "--lease-seconds",
    default=_DEFAULTS.lease_seconds,
    text="After so long without a sign of life another relay takes over.",
)
@seconds_option(
    "--keep-done-seconds",
    default=_DEFAULTS.keep_done_seconds,
    text="How long delivered events are kept for people to see; 0 deletes them at once.",
)
@click.option("--name", help="The name that `status` shows.  [default: host:process id]")
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
)
@click.pass_context
def run(
    ctx: click.Context,
    store: Url,
    broker: Url,
    stream: str,
    batch_size: int,
    max_batch_size: int | None,
    poll_seconds: float,
    max_attempts: int,
    lease_seconds: float,
    keep_done_seconds: float,
    name: str | None,
    log_level: str,
) -> None:
    """Deliver the events of a stream until told to stop.

    SIGTERM or Ctrl-C: what is in flight is finished, the lanes are handed over, exit code 0. A
    second signal stops at once, exit code 130; what was in flight may then be sent again. A broker
    or store that is away is waited for.

    \b
    Examples:
      postroom run --store sqlite:///app.db --broker handlers:shop.app:handlers
      postroom run --store sqlite:///app.db --broker null: --stream mail

    With handlers:module:attribute modules in the current folder are found, too.
    """  # noqa: D301 - click knows the sign
    if max_batch_size is None:
        max_batch_size = max(batch_size, _DEFAULTS.max_batch_size)
    settings = RelaySettings(
        stream=stream,
        batch_size=batch_size,
        max_batch_size=max_batch_size,
        poll_seconds=poll_seconds,
        retry=RetryPolicy(max_attempts=max_attempts),
        lease_seconds=lease_seconds,
        keep_done_seconds=keep_done_seconds,
        name=name if name is not None else f"{socket.gethostname()}:{os.getpid()}",
    )
    if broker.scheme == "handlers":
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - a script has its own folder there
    log_to_stderr(log_level)
    ctx.exit(asyncio.run(_serve(store, broker, settings)))


async def _serve(store: Url, broker: Url, settings: RelaySettings) -> ExitCode:
    log = logging.getLogger(LOGGER)
    relay = Watched(load_store(store), load_broker(broker), settings, observers=(LogObserver(),))
    facts = {"version": __version__, "stream": settings.stream, "name": settings.name}
    log.info("%s", line("starting", facts | {"store": store, "broker": broker}))
    in_peace = await relay.run()
    how = "gracefully" if in_peace else "at_once"
    log.info("%s", line("stopped", {"how": how} | asdict(relay.counts)))
    return ExitCode.OK if in_peace else ExitCode.INTERRUPTED


def log_to_stderr(level: str) -> None:
    """Send log lines to stderr, with the time in UTC."""
    form = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    form.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(form)
    logging.basicConfig(level=level.upper(), handlers=[handler])
