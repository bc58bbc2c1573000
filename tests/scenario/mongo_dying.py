"""A process that kills itself (SIGKILL) when it is about to send its n-th command to MongoDB.

    python -m tests.scenario.mongo_dying URL package.module:function N

The function is called with the URL and a listener for clients. What was sent before has happened,
what comes after has not: with every N up to the last, every state in between is left behind once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import cache
from importlib import import_module

from pymongo.monitoring import CommandListener

from tests.prepared import Prepared

DIED = -signal.SIGKILL


class Dying(CommandListener):
    """Counts commands from the moment it is armed, and dies before the n-th."""

    def __init__(self, number):
        self._left = number
        self.armed = False

    def started(self, event):
        if not self.armed or event.command_name in ("hello", "endSessions", "ping"):
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def succeeded(self, event): ...

    def failed(self, event): ...


@cache
def _prepared(module):
    # A bug is planted before anything else is loaded.
    modules = [] if os.environ.get("POSTROOM_MUTANT") else [module]
    return Prepared(*modules, env=dict(os.environ))


async def die_at(number, url, function):
    """Run the function in a process that dies before its n-th command; False if it lived."""
    module = function.__module__
    done = await asyncio.to_thread(
        _prepared(module).run, __name__, url, f"{module}:{function.__name__}", number,
        env=dict(os.environ), timeout=60,
    )  # fmt: skip
    assert done.returncode in (0, DIED), done.stderr
    return done.returncode == DIED


if __name__ == "__main__":
    if planted := os.environ.get("POSTROOM_MUTANT"):
        import_module("tests.mutants.catalog").MUTANTS[planted].plant()
    url, name, number = sys.argv[1:]
    module, _, attribute = name.partition(":")
    asyncio.run(getattr(import_module(module), attribute)(url, Dying(int(number))))
