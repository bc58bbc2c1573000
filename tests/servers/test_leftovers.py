"""Nothing is left: no process, no folder, no shared memory; however the owner ends."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.servers import process
from tests.servers.keeper import ProcessState, descendants, process_state
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres
from tests.servers.process import Server, ServerError, wait_until, wait_until_gone

ROOT = Path(__file__).parents[2]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it was short-lived
        return ""


@pytest.fixture
def data() -> Iterator[Path]:
    """Make a folder for data that servers running as other users can pass through."""
    folder = Path(tempfile.mkdtemp(prefix="postroom-leftovers-", dir=process.data_root()))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def started(name: str, data: Path) -> Iterator[tuple[subprocess.Popen[str], list[ProcessState]]]:
    """Start a server by the command for people; give all processes, once the URL is printed."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.servers", "start", name],
        cwd=ROOT,
        env={**os.environ, "POSTROOM_TEST_DATA": str(data)},
        stdout=subprocess.PIPE,
        text=True,
    ) as command:
        try:
            assert "://" in read_line(command.stdout)
            yield command, descendants(command.pid)
        finally:
            command.kill()


def read_line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def shared_memory() -> set[str]:
    """List the memory that outlives processes: System V segments and files in memory."""
    segments = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {line.split()[1] for line in segments} | set(os.listdir("/dev/shm"))


@pytest.mark.server
@pytest.mark.parametrize("name", ["postgres", "mariadb", "mongo", "kafka", "rabbitmq"])
def test_sigterm_leaves_nothing(name: str, data: Path) -> None:
    with started(name, data) as (command, processes):
        assert len(processes) >= 2  # the keeper and the server
        assert os.listdir(data)
        command.send_signal(signal.SIGTERM)
        assert command.wait(30) == 0
        wait_until_gone(processes, within=1)  # the command itself has waited
        assert os.listdir(data) == []


@pytest.mark.server
@pytest.mark.parametrize("name", ["postgres", "rabbitmq"])
def test_sigkill_leaves_nothing(name: str, data: Path) -> None:
    with started(name, data) as (command, processes):
        names = {name_of(one.pid) for one in processes}
        assert names >= {"postgres": {"postgres"}, "rabbitmq": {"beam.smp", "epmd"}}[name]
        command.kill()
        wait_until_gone(processes)
        wait_until(lambda: os.listdir(data) == [], within=5, what="the end of the folder")


@pytest.mark.server
def test_ctrl_c_during_the_start_leaves_nothing(data: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.servers", "start", "mariadb"],
        cwd=ROOT,
        env={**os.environ, "POSTROOM_TEST_DATA": str(data)},
        stdout=subprocess.DEVNULL,
    ) as command:
        wait_until(lambda: os.listdir(data), within=30, what="the first traces of a start")
        processes = descendants(command.pid)
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == 0
        wait_until_gone(processes, within=1)
        assert os.listdir(data) == []


@pytest.mark.server
def test_a_killed_postgres_leaves_no_shared_memory() -> None:
    before = shared_memory()
    server = Postgres().start()
    segment = (server.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
    assert segment not in before
    server.kill()
    server.stop()
    assert segment not in shared_memory()


class Program(Server):
    """A stand-in for a server: any program, ready when its log says so."""

    name = "program"

    def __init__(self, script: str, **options: Any) -> None:
        super().__init__(**options)
        self.script = script

    @property
    def url(self) -> str:
        return "program://"

    def prepare(self) -> None:
        pass

    def command(self) -> list[str | Path]:
        return [sys.executable, "-c", self.script]

    def answers(self) -> bool:
        return "ready" in self.log.read_text()


def test_a_daemon_that_left_its_session_is_ended_too(data: Path) -> None:
    daemon = (
        "import os, signal\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "        print('ready', flush=True)\n"
        "    else:\n"
        "        os._exit(0)\n"
        "signal.pause()\n"
    )
    with Program(daemon, under=data) as server:
        processes = server.processes
        assert len(processes) == 2
    wait_until_gone(processes, within=1)
    assert os.listdir(data) == []


def test_a_frozen_server_is_ended_too(data: Path) -> None:
    with Program("import signal; print('ready', flush=True); signal.pause()", under=data) as server:
        processes = server.processes
        server.freeze()
    wait_until_gone(processes, within=1)


def test_a_server_that_ends_by_itself_is_an_error_with_its_log(data: Path) -> None:
    with pytest.raises(ServerError, match=r"ended by itself with 3(?s:.*)the disk is full"):
        Program("print('the disk is full'); raise SystemExit(3)", under=data).start()
    assert os.listdir(data) == []


def test_a_program_that_is_not_there_is_an_error(data: Path) -> None:
    server = Program("", under=data)
    server.command = lambda: ["/no/such/program"]  # type: ignore[method-assign]
    with pytest.raises(ServerError, match="/no/such/program"):
        server.start()
    assert os.listdir(data) == []


def test_stop_twice_and_start_again(data: Path) -> None:
    server = Program("import signal; print('ready', flush=True); signal.pause()", under=data)
    server.start()
    server.stop()
    server.stop()
    assert server.pids == []
    server.start()
    assert len(server.pids) == 1
    server.stop()
    assert os.listdir(data) == []


def test_the_death_of_another_owner_ends_a_server(data: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        script = "import signal; print('ready', flush=True); signal.pause()"
        server = Program(script, under=data, owner=owner.pid).start()
        processes = [*server.processes, *server.keepers]
        server.release()
        assert all(process_state(one.pid) for one in processes)
        owner.kill()
    wait_until_gone(processes)
    wait_until(lambda: not data.exists(), within=5, what="the end of the run's folder")


def test_a_server_that_cannot_be_found_says_what_to_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tests.servers.programs.SYSTEM_PATH", str(tmp_path))
    with pytest.raises(ServerError, match="python -m tests.servers install"):
        MariaDB().start()
