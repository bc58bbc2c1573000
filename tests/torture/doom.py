"""What a process does to itself: die at a chosen moment, look at a wrong clock, tell where it hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

DIE, FREEZE = signal.SIGUSR1, signal.SIGURG  # the second is ignored by who is not yet up


class Doom:
    """After the signal this process dies, or stops, when it comes to the moment where it strikes."""

    def __init__(self):
        self._coming = None
        for number in (DIE, FREEZE, signal.SIGCONT):  # whoever goes on is not doomed any more
            signal.signal(number, self._come)

    def strike(self, history):
        coming, self._coming = self._coming, None
        if coming is not None:
            history.note("doomed", to="die" if coming == DIE else "freeze")
            os.kill(os.getpid(), signal.SIGKILL if coming == DIE else signal.SIGSTOP)

    def _come(self, number, frame):
        del frame
        self._coming = None if number == signal.SIGCONT else number


def set_clock(hours):
    """Let this process believe that it is so many hours later.

    Not by libfaketime: it makes the threads of librdkafka turn in circles.
    """
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + 3600 * hours
    time.time_ns = lambda: real_ns() + round(3600e9 * hours)


def plant_mutant():
    """Plant the bug that POSTROOM_MUTANT names, to see that the checker notices it."""
    if name := os.environ.get("POSTROOM_MUTANT"):
        from tests.mutants.catalog import MUTANTS

        MUTANTS[name].plant()


def die_with_parent():
    """Leave nothing behind when the cell itself is killed."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def explain_on_signal():
    """On SIGUSR2 write to the log where every task stands. Call it on the event loop."""

    def explain():
        for task in asyncio.all_tasks():
            place, chain = task.get_coro(), []
            while place is not None:
                frame = getattr(place, "cr_frame", None)
                chain.append(
                    f"{frame.f_code.co_qualname}:{frame.f_lineno}" if frame else str(place)
                )
                place = getattr(place, "cr_await", None)
            print(f"{task.get_name()}: {' > '.join(chain)}", file=sys.stderr, flush=True)

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, explain)
