"""What ties the demo's processes to the stage: they hear its commands, and end when it is gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

_STDIN = 0
ABANDONED = 1


def hold_on(obey: Callable[[str], object] = lambda _: None) -> None:
    """Follow the stage's commands; leave at once when it is gone, however it went.

    Its end of the pipe closes even if it was killed. The file descriptor is read directly: a
    thread that waits inside of `sys.stdin` would not let the interpreter end.
    """

    def listen() -> None:
        rest = b""
        while chunk := os.read(_STDIN, 4096):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                obey(line.decode())
        os._exit(ABANDONED)

    threading.Thread(target=listen, daemon=True, name="lifeline").start()
