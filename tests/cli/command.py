"""The real command in a process of its own, as a user would call it.

Most calls are forked from a process that has loaded postroom: see `tests/prepared.py`.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path

import postroom
from tests.prepared import Prepared

SOURCE = Path(postroom.__file__).parents[1]
PATIENCE_SECONDS = 90.0


def environment(**extra):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("POSTROOM_")}
    return kept | {"PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "utf-8"} | extra


def argv(*arguments):
    return [sys.executable, "-m", "postroom", *arguments]


@cache
def _prepared():
    stores = [f"postroom.stores.{name}" for name in ("sqlite", "postgres", "mysql", "mongo")]
    mutant = os.environ.get("POSTROOM_MUTANT")  # commands have the bug that is planted here
    if not mutant:
        return Prepared("postroom.cli", *stores, env=environment())
    env = environment(POSTROOM_MUTANT=mutant)
    return Prepared("postroom.cli", *stores, "tests.mutants.planted", env=env)


def call(*arguments, cwd, stdout=subprocess.PIPE, timeout=PATIENCE_SECONDS, **extra):
    """Run a command to its end, in a process that need not load postroom first."""
    return _prepared().run(
        "postroom", *arguments, cwd=cwd, env=environment(**extra), stdout=stdout, timeout=timeout
    )


def call_afresh(*arguments, cwd):
    """Run a command to its end, in a process that begins with nothing."""
    return subprocess.run(
        argv(*arguments), cwd=cwd, env=environment(), capture_output=True,
        stdin=subprocess.DEVNULL, text=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def _start(arguments, cwd, extra, **output):
    env = environment(**extra)
    if any(name.startswith("PYTHON") for name in extra):  # Python itself must see it
        return subprocess.Popen(
            argv(*arguments), cwd=cwd, env=env, stdin=subprocess.DEVNULL, start_new_session=True,
            **output,
        )  # fmt: skip
    return _prepared().start("postroom", *arguments, cwd=cwd, env=env, own_session=True, **output)


class Running:
    """A command that goes on; its stderr is read line by line, its stdout at the end."""

    def __init__(self, *arguments, cwd, **extra):
        out, err = os.pipe(), os.pipe()
        self.process = _start(arguments, cwd, extra, stdout=out[1], stderr=err[1])
        os.close(out[1])
        os.close(err[1])
        self.lines = []
        self.out = []
        self._spoke = threading.Event()
        self._heard = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._read, args=(err[0], self._heard)),
            threading.Thread(target=self._read, args=(out[0], None)),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, handle, heard):
        with open(handle, encoding="utf-8") as stream:
            for line in stream:
                if heard is None:
                    self.out.append(line)
                    self._spoke.set()
                else:
                    heard.put(line)
        if heard is not None:
            heard.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()

    def hear(self, pattern):
        """Wait for a line on stderr that matches."""
        deadline = time.monotonic() + PATIENCE_SECONDS  # for all lines: a relay is never silent
        while True:
            try:
                line = self._heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"it never said {pattern!r}: {self.lines}") from None
            assert line is not None, f"it ended without {pattern!r}: {self.lines}"
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found

    def listen(self):
        """Wait for the first line on stdout."""
        assert self._spoke.wait(PATIENCE_SECONDS)

    def send(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def end(self):
        """Wait for the end; returns the exit code."""
        code = self.process.wait(timeout=PATIENCE_SECONDS)
        for thread in self._threads:
            thread.join()
        while (line := self._heard.get()) is not None:
            self.lines.append(line)
        return code
