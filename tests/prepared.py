"""A process that has loaded its modules already; it forks for each command.

A command then begins where `python -m module` is when all modules are loaded, and ends as any
process of Python does. To load them takes ten times as long as most commands. What depends on the
start of Python is a process of its own from the beginning.
"""

from __future__ import annotations

import atexit
import json
import os
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
    """Holds the process; it ends when its socket closes, and so with the tests."""

    def __init__(self, *modules, env):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.prepared", str(theirs.fileno()), *modules],
                env=env, cwd=ROOT, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        self._turn = threading.Lock()
        atexit.register(self.end)

    def end(self):
        self._socket.close()
        self._process.wait()

    def run(self, module, *arguments, env, timeout, cwd=ROOT, stdout=subprocess.PIPE):
        """Run a module to its end, as `subprocess.run` does with `text` and `capture_output`."""
        words = [str(argument) for argument in arguments]
        order = {"module": module, "arguments": words, "cwd": str(cwd), "env": env}
        with (
            self._turn,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            Path(os.devnull).open("rb") as nothing,
        ):
            into = out.fileno() if stdout is subprocess.PIPE else stdout
            handles = [nothing.fileno(), into, err.fileno()]
            self._socket.settimeout(timeout)
            socket.send_fds(self._socket, [json.dumps(order).encode()], handles)
            pid = int(self._socket.recv(64))
            try:
                code = int(self._socket.recv(64))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._socket.recv(64)
                raise subprocess.TimeoutExpired([module, *words], timeout) from None
            said = [_text(out) if stdout is subprocess.PIPE else None, _text(err)]
        return subprocess.CompletedProcess([module, *words], code, *said)


def _text(file):
    file.seek(0)
    return file.read().decode("utf-8")


def _serve(ours):
    """Fork for each order; returns the order in the child."""
    while True:
        message, handles, *_ = socket.recv_fds(ours, _LARGEST, 3)
        if not message:
            os._exit(0)
        child = os.fork()
        if child == 0:
            return json.loads(message), handles
        for handle in handles:
            os.close(handle)
        ours.send(str(child).encode())
        _, status = os.waitpid(child, 0)
        ours.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(order, handles):
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

    for _name in sys.argv[2:]:
        importlib.import_module(_name)
    gc.collect()
    gc.freeze()  # a child that looked through them all would have to copy them
    with socket.socket(fileno=int(sys.argv[1])) as _ours:
        _order, _handles = _serve(_ours)
    _become(_order, _handles)
    _name = _order["module"]
    if not hasattr(sys.modules.get(_name), "__path__"):  # a package stays, its __main__ is run
        sys.modules.pop(_name, None)
    runpy.run_module(_name, run_name="__main__", alter_sys=True)
