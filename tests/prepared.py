"""A process that has loaded its modules already; it forks for each command.

A command then begins where `python -m module` is when all modules are loaded, and ends as any
process of Python does. To load them takes ten times as long as most commands. What depends on the
start of Python is a process of its own from the beginning.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LARGEST = 1_000_000


class Prepared:
    """Holds the process; it ends when its socket closes, and so with the tests.

    `options` are Python's own; `env` decides about what Python itself looks at.
    """

    def __init__(self, *modules, env, options=()):
        self._socket, theirs = _pair()
        command = [sys.executable, *options, "-m", "tests.prepared", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                [*command, *modules], env=env, cwd=ROOT, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        atexit.register(self.end)

    def end(self):
        self._socket.close()
        self._process.wait()

    def start(self, module, *arguments, env, stdout, stderr, cwd=ROOT, own_session=False):
        """Run a module as a process; its output goes into these handles."""
        words = [str(argument) for argument in arguments]
        order = {
            "module": module, "arguments": words, "cwd": str(cwd), "env": env,
            "own_session": own_session,
        }  # fmt: skip
        ours, theirs = _pair()
        with theirs, Path(os.devnull).open("rb") as nothing:
            handles = [nothing.fileno(), stdout, stderr, theirs.fileno()]
            socket.send_fds(self._socket, [json.dumps(order).encode()], handles)
        return Started(ours)

    def run(self, module, *arguments, env, timeout, cwd=ROOT, stdout=subprocess.PIPE):
        """Run a module to its end, as `subprocess.run` does with `text` and `capture_output`."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            into = out.fileno() if stdout is subprocess.PIPE else stdout
            started = self.start(
                module, *arguments, env=env, stdout=into, stderr=err.fileno(), cwd=cwd
            )
            try:
                code = started.wait(timeout)
            finally:
                started.kill()
                started.wait()
            said = [_text(out) if stdout is subprocess.PIPE else None, _text(err)]
        return subprocess.CompletedProcess([module, *arguments], code, *said)


class Started:
    """A process, with what tests need of `subprocess.Popen`."""

    def __init__(self, news):
        self._news = news
        self._looking = threading.Lock()
        self.pid = int(news.recv(64))
        self.returncode = None

    def __del__(self):
        self._news.close()

    def poll(self):
        """Return the exit code, None while it runs."""
        with self._looking:
            if self.returncode is None and self._is_told(0):
                self.returncode = int(self._news.recv(64))
            return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            self._is_told(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def _is_told(self, seconds):
        return bool(select.select([self._news], [], [], seconds)[0])

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


async def lines_of(handle):
    """Yield the lines that a process writes into a pipe; `handle` is where they come out."""
    reader = asyncio.StreamReader()
    with open(handle, "rb", buffering=0) as pipe:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            async for line in reader:
                yield line.decode().strip()
        finally:
            transport.close()


def _pair():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _text(file):
    file.seek(0)
    return file.read().decode("utf-8")


def _serve(ours):
    """Fork for each order; returns the order in the process that is to become it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, handles, *_ = socket.recv_fds(ours, _LARGEST, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ours.close()
            *handles, news = handles
            _watch(handles, socket.socket(fileno=news))
            return json.loads(message), handles
        for handle in handles:
            os.close(handle)


def _watch(handles, news):
    """Fork once more; returns in the child, and tells of the child's end in the parent."""
    if child := os.fork():
        for handle in handles:
            os.close(handle)
        news.send(str(child).encode())
        _, status = os.waitpid(child, 0)
        news.send(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    news.close()


def _become(order, handles):
    if order["own_session"]:
        os.setsid()
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path[0] = order["cwd"]
    sys.argv = [order["module"], *order["arguments"]]


if __name__ == "__main__":
    import gc
    import importlib
    import runpy

    _number, *_names = sys.argv[1:]
    for _name in _names:
        importlib.import_module(_name)
    gc.collect()
    gc.freeze()  # a child that looked through them all would have to copy them
    _order, _handles = _serve(socket.socket(fileno=int(_number)))
    _become(_order, _handles)
    _name = _order["module"]
    if not hasattr(sys.modules.get(_name), "__path__"):  # a package stays, its __main__ is run
        sys.modules.pop(_name, None)
    runpy.run_module(_name, run_name="__main__", alter_sys=True)
