"""The demo's child processes: start them, read their reports, end them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

_END_SECONDS = 10.0


class DemoError(click.ClickException):
    """The demo could not be completed."""


class Actor:
    """A child process. Its reports (one JSON object per line) are merged into `facts`."""

    def __init__(
        self, role: str, name: str, process: asyncio.subprocess.Process, log: Path
    ) -> None:
        self.role = role
        self.name = name
        self.facts: dict[str, Any] = {}
        self.leaving = False  # it was told to end
        self.finishes = False  # it ends without being told, with exit code 0
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def say(self, command: str) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(ConnectionError):
            stdin.write(command.encode() + b"\n")

    def kill(self) -> None:
        """Send SIGKILL, which leaves no chance to clean up."""
        self.leaving = True
        with suppress(ProcessLookupError):
            self._process.kill()

    def terminate(self) -> None:
        self.leaving = True
        with suppress(ProcessLookupError):
            self._process.terminate()

    @property
    def has_failed(self) -> bool:
        """Whether the process ended unexpectedly."""
        code = self.exit_code
        return code is not None and not self.leaving and not (self.finishes and code == 0)

    async def ended(self) -> int:
        """Wait for the process to end; kill it after a timeout."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    async def listen(self, changed: asyncio.Event) -> None:
        """Read reports until the process ends."""
        stdout = self._process.stdout
        assert stdout is not None
        while line := await stdout.readline():
            self.facts.update(json.loads(line))
            changed.set()
        await self._process.wait()
        changed.set()

    def last_words(self) -> str:
        with suppress(OSError):
            lines = self._log.read_text(errors="replace").strip().splitlines()
            if lines:
                return lines[-1]
        return "its log is empty"


class Crew:
    """All processes of one demo; `end` ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._actors: list[Actor] = []
        self._listening: list[asyncio.Task[None]] = []
        self.changed = asyncio.Event()

    async def start(self, role: str, *arguments: str, name: str | None = None) -> Actor:
        """Start a process in its own session: Ctrl-C reaches only the stage, which ends it."""
        name = name or role
        log = self._folder / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "postroom.demo", role, *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        actor = Actor(role, name, process, log)
        self._actors.append(actor)
        self._listening.append(asyncio.create_task(actor.listen(self.changed)))
        return actor

    async def until(
        self, true: Callable[[], bool], seconds: float, meanwhile: Callable[[], None]
    ) -> bool:
        """Wait for a condition; False after a timeout. Raises DemoError if a process dies."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not true():
            self._check()
            meanwhile()
            left = deadline - loop.time()
            if left <= 0:
                return False
            self.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, 0.2)):
                    await self.changed.wait()
        return True

    def _check(self) -> None:
        for actor in self._actors:
            if actor.has_failed:
                raise DemoError(
                    f"the {actor.name} ended unexpectedly with code {actor.exit_code}: "
                    f"{actor.last_words()}"
                )

    async def end(self) -> None:
        """Kill the remaining processes and wait until all have ended."""
        for actor in self._actors:
            if actor.exit_code is None:
                actor.kill()
        for actor in self._actors:
            await actor.ended()
        for task in self._listening:
            task.cancel()
        if self._listening:
            await asyncio.wait(self._listening)
