"""Why events of a stream fail and wait, for `postroom status`; and colours for terminals."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import click

from postroom.lookup import Filter
from postroom.model.dead_letters import pattern
from postroom.record import State
from postroom.store import Store

_LOOKED_AT = 50  # records have their payloads with them
_SHOWN = 3
_BAD = re.compile(r"^  (dead +[1-9][0-9,]*)|( gone |no relay serves this stream)")
_WARN = re.compile(r"^  (failed +[1-9][0-9,]*)|( unhealthy |^paused:.*)")


@dataclass(frozen=True)
class CauseSeen:
    """An error of failed events, with numbers and ids left out, and how many of those looked at."""

    error: str
    events: int


async def causes(store: Store, stream: str, counts: Mapping[str, int]) -> list[CauseSeen]:
    """Return the most frequent errors of the first failed events; one query if there are any."""
    if not counts.get(str(State.FAILED)):
        return []
    wanted = Filter(stream=stream, state=State.FAILED, limit=_LOOKED_AT)
    found = Counter(pattern(record.last_error) for record in await store.find(wanted))
    return [CauseSeen(error or "unknown", n) for error, n in found.most_common(_SHOWN)]


def paint(line: str) -> str:
    """Return a line of the output in colours, where the terminal has them.

    `click.echo` removes them from a pipe or a file; NO_COLOR turns them off.
    """
    if os.environ.get("NO_COLOR"):
        return line
    for sign, colour in ((_BAD, "red"), (_WARN, "yellow")):
        if found := sign.search(line):
            painted = click.style(found[0], fg=colour)
            line = f"{line[: found.start()]}{painted}{line[found.end() :]}"
    return click.style(line, bold=True) if line.startswith(("stream ", "consumer ")) else line
