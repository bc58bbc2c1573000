"""What all servers share: a folder, free ports, a start that waits for an answer, and faults."""

import abc
import contextlib
import json
import os
import pwd
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.servers import keeper
from tests.servers.keeper import ProcessState, descendants, is_running, process_state, signal_all

READY_SECONDS = 120.0
END_SECONDS = 30.0
POLL_SECONDS = 0.03
LOG_TAIL_BYTES = 4000
LOWEST_PORT = 10_000

_ports_given: set[int] = set()


class ServerError(Exception):
    """A server did not start, answer or stop; the message ends with its last log lines."""


class NotInstalledError(ServerError):
    """A program that the server needs is not on this machine."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed: run  python -m tests.servers install")


def wait_until(
    check: Callable[[], object], *, within: float, what: str, give_up: Callable[[], object] = bool
) -> None:
    """Poll until `check` is true; an error that it raises means "not yet".

    `give_up` is asked before each look and ends the wait early by raising.
    """
    deadline = time.monotonic() + within
    last: Exception | None = None
    while True:
        give_up()
        try:
            if check():
                return
        except Exception as error:
            last = error
        if time.monotonic() >= deadline:
            raise ServerError(f"{what}: not within {within:g} s (last error: {last!r})") from last
        time.sleep(POLL_SECONDS)


def wait_until_gone(processes: Iterable[ProcessState], *, within: float = END_SECONDS) -> None:
    """Wait until every one of these processes has ended."""
    left = list(processes)

    def all_gone() -> bool:
        left[:] = [process for process in left if is_running(process)]
        return not left

    wait_until(all_gone, within=within, what="the end of a server's processes")


def free_port() -> int:
    """Choose a port of 127.0.0.1 that nobody listens on.

    It lies below the range from which the kernel takes ports for outgoing connections, so that no
    client can take it between a kill and a restart.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(LOWEST_PORT, max(low, LOWEST_PORT + 1000))
        if port in _ports_given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            _ports_given.add(port)
            return port
    raise ServerError("no free port on 127.0.0.1")


def listens(port: int) -> bool:
    """Say whether anybody listens: a quiet question before a client that would log its failure."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def data_root() -> Path:
    """Give the folder for data: on disk also where the usual one for temporary files is memory."""
    return Path(os.environ.get("POSTROOM_TEST_DATA") or "/var/tmp")


class Running(abc.ABC):
    """A server, or a cluster of them, as tests hold it in their hands."""

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """Where clients connect."""

    @property
    @abc.abstractmethod
    def pids(self) -> list[int]:
        """The ids of all its processes."""

    @property
    @abc.abstractmethod
    def keepers(self) -> list[ProcessState]:
        """The processes to end (SIGTERM) so that everything ends and its folders go."""

    @abc.abstractmethod
    def start(self) -> Self:
        """Start it and wait until it answers."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End all its processes and remove its data; a second call does nothing."""

    @abc.abstractmethod
    def release(self) -> None:
        """Let it run on without this object; the end of its owner still ends it."""

    @abc.abstractmethod
    def kill(self) -> None:
        """End all its processes with SIGKILL, and keep the data."""

    @abc.abstractmethod
    def freeze(self) -> None:
        """Stop the time of all its processes (SIGSTOP)."""

    @abc.abstractmethod
    def thaw(self) -> None:
        """Let frozen processes go on."""

    @abc.abstractmethod
    def restart(self) -> None:
        """Start it again with the same ports and data; kill what still runs."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class Server(Running):
    """One server process with what it starts, in a folder of its own.

    `owner` is the process whose death ends the server: this one, unless told otherwise.
    `under` is the folder of a whole run; the owner's death removes it with all that is in it.
    """

    name: ClassVar[str]
    system_user: ClassVar[str | None] = None  # the user to become when started by root
    stop_signal: ClassVar[signal.Signals] = signal.SIGKILL  # the data is thrown away anyway

    def __init__(self, *, owner: int | None = None, under: Path | None = None) -> None:
        self._owner = owner or os.getpid()
        self._sweep = under
        self._under = under or data_root()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._keeper_state: ProcessState | None = None
        self._asking = threading.Lock()
        self._folder: Path | None = None
        self._main: int | None = None

    @abc.abstractmethod
    def prepare(self) -> None:
        """Make the data folder and the configuration; once, before the first launch."""

    @abc.abstractmethod
    def command(self) -> Sequence[str | Path]:
        """Give the server's command line."""

    @abc.abstractmethod
    def answers(self) -> bool:
        """Ask the server something in its own protocol; raise or say no when it is not ready."""

    def environment(self) -> dict[str, str]:
        """Give variables for the server, besides PATH, HOME and TMPDIR."""
        return {}

    @property
    def folder(self) -> Path:
        """The folder with data, configuration and log."""
        if self._folder is None:
            raise ServerError(f"{self.name} is not started")
        return self._folder

    @property
    def user(self) -> str | None:
        """The user that the server runs as; None for the one who runs the tests."""
        return self.system_user if os.geteuid() == 0 else None

    @property
    def log(self) -> Path:
        """The server's own log."""
        return self.folder / "log"

    @property
    def processes(self) -> list[ProcessState]:
        """All processes of the server that run now."""
        return [] if self._keeper is None else descendants(self._keeper.pid)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    @property
    def keepers(self) -> list[ProcessState]:
        return [] if self._keeper_state is None else [self._keeper_state]

    def start(self) -> Self:
        try:
            self.launch()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def launch(self) -> None:
        """Start the process, after the preparations at the first time, and do not wait."""
        if self._keeper is None:
            self._start_keeper()
            self.prepare()
        self._main = self._spawn(self.command(), log="log")

    def wait_ready(self) -> None:
        """Wait until the server answers in its own protocol."""
        self.wait_for(self.answers, f"an answer of {self.name}")

    def wait_for(self, check: Callable[[], object], what: str) -> None:
        """Wait until a check is true, and give up at once when the server ends by itself."""
        try:
            wait_until(check, within=READY_SECONDS, what=what, give_up=self._fail_when_exited)
        except ServerError as error:
            raise ServerError(f"{error}\n{self.log_tail()}") from error

    def stop(self) -> None:
        keeper_process, self._keeper = self._keeper, None
        if keeper_process is None:
            return
        keeper_process.terminate()
        try:
            keeper_process.wait(END_SECONDS)
        finally:
            for pipe in (keeper_process.stdin, keeper_process.stdout):
                if pipe is not None:
                    pipe.close()

    def release(self) -> None:
        if self._keeper is not None:
            for pipe in (self._keeper.stdin, self._keeper.stdout):
                if pipe is not None:
                    pipe.close()
            self._keeper.returncode = 0  # nobody here will wait for it
            self._keeper = None

    def kill(self) -> None:
        # Again and again, because a process may fork while the others are being killed.
        def killed() -> bool:
            signal_all(self.processes, signal.SIGKILL)
            return not self.processes

        wait_until(killed, within=END_SECONDS, what=f"the end of {self.name}")

    def freeze(self) -> None:
        # Until all stand still: the signal takes a moment, and a process may have forked.
        def frozen() -> bool:
            signal_all(self.processes, signal.SIGSTOP)
            return all(process.frozen for process in self.processes)

        wait_until(frozen, within=END_SECONDS, what=f"the freeze of {self.name}")

    def thaw(self) -> None:
        signal_all(self.processes, signal.SIGCONT)

    def restart(self) -> None:
        self.kill()
        self.launch()
        self.wait_ready()

    def run(self, argv: Sequence[str | Path], *, within: float = READY_SECONDS) -> None:
        """Run a program to its end, as the server's user and below its keeper."""
        pid = self._spawn(argv, log="prepare.log")
        wait_until(
            lambda: self._exit_status(pid) is not None,
            within=within,
            what=f"the end of {Path(argv[0]).name}",
        )
        if (status := self._exit_status(pid)) != 0:
            tail = self.log_tail("prepare.log")
            raise ServerError(f"{Path(argv[0]).name} ended with {status}\n{tail}")

    def write(self, name: str, text: str) -> Path:
        """Write a file of configuration that the server's user can read."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o644)
        return path

    def log_tail(self, log: str = "log") -> str:
        """Give the last lines of a log, for an error message."""
        try:
            text = (self.folder / log).read_bytes()[-LOG_TAIL_BYTES:]
        except FileNotFoundError:
            return f"({log} is not there)"
        return f"--- the end of {log} ---\n{text.decode(errors='replace')}"

    def variables(self) -> dict[str, str]:
        """Give the whole environment of the server's processes."""
        # Not the environment of the tests: the same start on every machine.
        keep = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        return {**keep, "HOME": str(self.folder), "TMPDIR": str(self.folder)} | self.environment()

    def _start_keeper(self) -> None:
        if self.user is not None:
            try:
                pwd.getpwnam(self.user)
            except KeyError as error:
                raise NotInstalledError(f"{self.name} (the user {self.user})") from error
        argv = [sys.executable, "-I", "-S", str(Path(keeper.__file__)), "--name", self.name]
        argv += ["--under", str(self._under), "--owner", str(self._owner)]
        argv += ["--stop-signal", str(int(self.stop_signal)), "--stop-seconds", "10"]
        argv += ["--user", self.user] if self.user else []
        argv += ["--sweep", str(self._sweep)] if self._sweep else []
        self._keeper = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._keeper_state = process_state(self._keeper.pid)
        self._folder = Path(self._read_answer()["folder"])

    def _spawn(self, argv: Sequence[str | Path], *, log: str) -> int:
        request = {"argv": [str(word) for word in argv], "env": self.variables()}
        answer = self._ask(request | {"log": log, "user": self.user})
        if "error" in answer:
            raise ServerError(answer["error"])
        return int(answer["pid"])

    def _exit_status(self, pid: int) -> int | None:
        status = self._ask({"status": pid})["status"]
        return None if status is None else int(status)

    def _fail_when_exited(self) -> None:
        if self._main is not None and (status := self._exit_status(self._main)) is not None:
            raise ServerError(f"{self.name} ended by itself with {status}")

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._keeper is None or self._keeper.stdin is None:
            raise ServerError(f"{self.name} is not started")
        with self._asking:
            self._keeper.stdin.write(json.dumps(request).encode() + b"\n")
            self._keeper.stdin.flush()
            return self._read_answer()

    def _read_answer(self) -> dict[str, Any]:
        line = self._keeper.stdout.readline() if self._keeper and self._keeper.stdout else b""
        if not line:
            raise ServerError(f"the keeper of {self.name} ended; see its error above")
        answer: dict[str, Any] = json.loads(line)
        return answer
