"""Connects the demo's processes to the stage: they follow its commands and end with it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

_STDIN = 0
ABANDONED = 1


def hold_on(obey: Callable[[str], object] = lambda _: None) -> None:
    """Follow the stage's commands; exit immediately when the stage has ended.

    The stage's end of the pipe closes even if it was killed. The file descriptor is read directly:
    a thread blocked in `sys.stdin` would keep the interpreter from exiting.
    """

    def listen() -> None:
        rest = b""
        while chunk := os.read(_STDIN, 4096):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                obey(line.decode())
        os._exit(ABANDONED)

    threading.Thread(target=listen, daemon=True, name="lifeline").start()
