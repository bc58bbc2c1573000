"""The demo's processes as the stage sees them: started, heard, ended."""

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
    """The demo could not be played to its end."""


class Actor:
    """One child process. What it says (a JSON object each line) is gathered in `facts`."""

    def __init__(
        self, role: str, name: str, process: asyncio.subprocess.Process, log: Path
    ) -> None:
        self.role = role
        self.name = name
        self.facts: dict[str, Any] = {}
        self.leaving = False  # its end is wanted
        self.finishes = False  # it ends by itself, with code 0
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
        """SIGKILL: it has no chance to do anything more."""
        self.leaving = True
        with suppress(ProcessLookupError):
            self._process.kill()

    def terminate(self) -> None:
        self.leaving = True
        with suppress(ProcessLookupError):
            self._process.terminate()

    @property
    def has_failed(self) -> bool:
        """Whether it ended when or how it should not have."""
        code = self.exit_code
        return code is not None and not self.leaving and not (self.finishes and code == 0)

    async def ended(self) -> int:
        """Wait for its end; one that does not end in time is killed."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    async def listen(self, changed: asyncio.Event) -> None:
        """Gather what it says until it ends."""
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
        return "it said nothing"


class Crew:
    """All processes of one demo. They end when this ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._actors: list[Actor] = []
        self._listening: list[asyncio.Task[None]] = []
        self.changed = asyncio.Event()

    async def start(self, role: str, *arguments: str, name: str | None = None) -> Actor:
        """Start a process of its own session: Ctrl-C reaches the stage alone, which ends it."""
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
        """Wait until it is true; False if it is not in time. Raises DemoError if a process dies."""
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
                    f"the {actor.name} ended by itself with code {actor.exit_code}: "
                    f"{actor.last_words()}"
                )

    async def end(self) -> None:
        """Kill what is still there, and wait until all are gone."""
        for actor in self._actors:
            if actor.exit_code is None:
                actor.kill()
        for actor in self._actors:
            await actor.ended()
        for task in self._listening:
            task.cancel()
        if self._listening:
            await asyncio.wait(self._listening)
