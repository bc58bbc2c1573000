"""Why events of a stream fail and wait, for `postroom status`; and colours for terminals."""

from __future__ import annotations

import os
import re

import click

_LOOKED_AT = 50  # records have their payloads with them
_SHOWN = 3
_BAD = re.compile(r"^  (dead +[1-9][0-9,]*)|( gone |no relay serves this stream)")
_WARN = re.compile(r"^  (failed +[1-9][0-9,]*)|( unhealthy |^paused:.*)")


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
