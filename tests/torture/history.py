"""Histories: what each process meant to do and what became of it, as lines of JSON.

Every process has a file of its own and only ever appends to it, one `write` for each line, so that
a kill leaves at most one torn line at its end.
"""

from __future__ import annotations

import json
import os
from time import time  # as it is now: a process may set its clock wrong later


class History:
    """One process' own history."""

    def __init__(self, path, process):
        self.process = process
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what, **fields):
        line = {"at": round(time(), 4), "process": self.process, "what": what, **fields}
        os.write(self._file, (json.dumps(line, separators=(",", ":")) + "\n").encode())


def read(folder, names="*.jsonl"):
    """Return the lines of all histories of a run, in the order of their times."""
    lines = []
    for path in folder.glob(names):
        for line in path.read_text().splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                continue  # torn by a kill
    return sorted(lines, key=lambda line: line["at"])
