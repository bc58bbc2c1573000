"""`postroom run --drain`: send what is due, then end with an exit code for cron and scripts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict

from postroom.cli.exit_codes import ExitCode
from postroom.engine.relay.relay import Relay
from postroom.engine.runner import drain_all
from postroom.errors import PausedError
from postroom.telemetry.log import LOGGER, say

_log = logging.getLogger(LOGGER)


async def drain(relays: Sequence[Relay], max_seconds: float | None) -> ExitCode:
    """Drain the relays and report each; return the worst outcome."""
    paused: str | None = None
    try:
        gracefully = await drain_all(relays, max_seconds=max_seconds)
    except PausedError as error:
        gracefully, paused = True, str(error)
    for relay in relays:
        facts: dict[str, object] = {"stream": relay.settings.stream}
        facts["how"] = relay.drain_end or "paused"
        say(_log, logging.INFO, "stopped", {**facts, **asdict(relay.counts)})
    if paused is not None:
        say(_log, logging.WARNING, "drain", {"paused": paused})
    if not gracefully:
        return ExitCode.INTERRUPTED
    if any(relay.counts.failed or relay.counts.dead for relay in relays):
        return ExitCode.FAILED
    if any(relay.drain_end != "drained" for relay in relays):
        return ExitCode.LEFT
    return ExitCode.OK
