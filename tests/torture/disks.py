"""A small disk that can be filled up. It lies in memory: a kill loses nothing that was written.

A power cut would; those are not part of the torture. In return an fsync, of which every event costs
several, does not decide how many events a run can have.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

SIZE = "4g"  # at most; only what is used takes memory


class Disk:
    def __init__(self, path):
        self.path = path
        self._filler = path / "filler"

    def fill(self):
        """Leave no room."""
        with self._filler.open("wb") as file:
            for share in (1 << 26, 1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), share)

    def free(self):
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk():
    """Mount a disk; yields None where that is not allowed."""
    with tempfile.TemporaryDirectory(prefix="postroom-disk-", dir="/var/tmp") as folder:
        path = Path(folder)
        try:
            _run("mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=755", "postroom", path)
        except (OSError, subprocess.CalledProcessError):
            yield None
            return
        try:
            yield Disk(path)
        finally:
            _run("umount", "-l", path)


def _run(*command):
    subprocess.run(command, check=True, capture_output=True)
