"""Keep one server's processes, and end every one of them when their owner has gone.

This file is also a program: it uses the standard library only and runs beside the tests, so that
even a test run that dies by SIGKILL leaves neither a process nor a folder behind.

It talks JSON lines: a request on its input, an answer on its output. The first line it writes
names the folder it made. SIGTERM, or the death of the owner, ends everything.
"""

import argparse
import contextlib
import ctypes
import json
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

OWNER_CHECK_SECONDS = 0.25
KILL_PAUSE_SECONDS = 0.01
PR_SET_CHILD_SUBREAPER = 36


class ProcessState(NamedTuple):
    """What the kernel says of one process; pid and start time together never repeat."""

    pid: int
    parent: int
    started: int
    state: str

    @property
    def running(self) -> bool:
        """Whether it is more than a corpse that nobody has collected."""
        return self.state not in {"Z", "X"}

    @property
    def frozen(self) -> bool:
        """Whether SIGSTOP holds it."""
        return self.state == "T"


def process_state(pid: int) -> ProcessState | None:
    """Say what a process is doing; None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name of the program, in brackets, may itself hold brackets and blanks.
    fields = stat.rpartition(b")")[2].split()
    return ProcessState(pid, int(fields[1]), int(fields[19]), fields[0].decode())


def is_running(process: ProcessState) -> bool:
    """Say whether this very process still runs; a zombie does not, nor does a reused pid."""
    now = process_state(process.pid)
    return now is not None and now.running and now.started == process.started


def descendants(root: int) -> list[ProcessState]:
    """List the living processes below this one, parents first."""
    children: dict[int, list[ProcessState]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (state := process_state(int(entry))) is not None:
            children.setdefault(state.parent, []).append(state)
    found: list[ProcessState] = []
    parents = [root]
    while parents:
        for child in children.get(parents.pop(), []):
            parents.append(child.pid)
            if child.running:
                found.append(child)
    return found


def signal_all(processes: list[ProcessState], number: signal.Signals) -> None:
    """Send a signal to each process that is still there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


class Keeper:
    """Starts processes in one folder, reaps them, and ends them with everything they started."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Become the parent of every orphan below, and make the folder."""
        owner = process_state(options.owner)
        if owner is None or not owner.running:
            raise SystemExit("the owner has gone already")
        self.owner = owner
        self.sweep: Path | None = options.sweep
        self.stop_signal = signal.Signals(options.stop_signal)
        self.stop_seconds: float = options.stop_seconds
        self.status: dict[int, int] = {}
        self.main: int | None = None
        self.ending = False
        # Before there is anything to clean, so that no signal can come in between.
        self.woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self.end)
        # A daemon that leaves its session and its parent (epmd does) becomes a child of this
        # process instead of init's, so that no descendant can hide.
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self.folder = Path(tempfile.mkdtemp(prefix=f"{options.name}-", dir=options.under))
        if options.user:
            user = pwd.getpwnam(options.user)
            os.chown(self.folder, user.pw_uid, user.pw_gid)

    def serve(self) -> None:
        """Answer requests until told to end, or until the owner has gone."""
        self.answer({"folder": str(self.folder)})
        poll = select.poll()
        requests = sys.stdin.fileno()
        poll.register(requests, select.POLLIN)
        poll.register(self.woken, select.POLLIN)
        pending = b""
        while not self.ending and is_running(self.owner):
            for descriptor, _ in poll.poll(OWNER_CHECK_SECONDS * 1000):
                data = os.read(descriptor, 65536)
                if descriptor == requests:
                    if not data:  # whoever asked has gone, but the owner may live on
                        poll.unregister(requests)
                    *lines, pending = (pending + data).split(b"\n")
                    for line in lines:
                        self.answer(self.handle(json.loads(line)))
            self.reap()

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what one request asks."""
        if "status" in request:
            self.reap()
            return {"status": self.status.get(request["status"])}
        try:
            with (self.folder / request["log"]).open("ab") as log:
                process = subprocess.Popen(
                    request["argv"],
                    env=request["env"],
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    **run_as(request["user"]),
                )
        except (OSError, subprocess.SubprocessError) as error:
            return {"error": f"{request['argv'][0]}: {error}"}
        self.main = process.pid
        self.status.pop(process.pid, None)  # of an older process with the same pid
        process.returncode = 0  # reap() collects it, not this object
        return {"pid": process.pid}

    def answer(self, reply: dict[str, Any]) -> None:
        """Write one line; nobody may be listening any more."""
        with contextlib.suppress(BrokenPipeError):
            os.write(sys.stdout.fileno(), json.dumps(reply).encode() + b"\n")

    def reap(self) -> None:
        """Collect every dead child, also those adopted from dead parents."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self.status[pid] = os.waitstatus_to_exitcode(status)

    def end(self, *_: object) -> None:
        """Leave serve() at the next turn."""
        self.ending = True

    def clean(self) -> None:
        """End every process, first politely where that matters, and remove the folder."""
        me = os.getpid()
        deadline = time.monotonic() + self.stop_seconds
        if self.stop_signal != signal.SIGKILL and self.main in {p.pid for p in descendants(me)}:
            signal_all(descendants(me), signal.SIGCONT)  # a frozen process would not listen
            os.kill(self.main or 0, self.stop_signal)
            while descendants(me) and time.monotonic() < deadline:
                time.sleep(KILL_PAUSE_SECONDS)
                self.reap()
        while alive := descendants(me):
            signal_all(alive, signal.SIGKILL)
            time.sleep(KILL_PAUSE_SECONDS)
            self.reap()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()  # all are dead; leave no zombies to an init that may not collect them
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.sweep is not None and not is_running(self.owner):
            shutil.rmtree(self.sweep, ignore_errors=True)


def run_as(user: str | None) -> dict[str, Any]:
    """Give the arguments of Popen that change to this user and none of root's groups."""
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--under", type=Path, required=True, help="make the folder in here")
    parser.add_argument("--owner", type=int, required=True, help="pid; its death ends everything")
    parser.add_argument("--sweep", type=Path, help="remove this too when the owner has gone")
    parser.add_argument("--user", help="give the folder to this user")
    parser.add_argument("--stop-signal", type=int, required=True)
    parser.add_argument("--stop-seconds", type=float, required=True)
    keeper = Keeper(parser.parse_args())
    try:
        keeper.serve()
    finally:
        keeper.clean()


if __name__ == "__main__":
    main()
