"""The fixtures: one server per run whatever the number of workers, and never a skip."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.keeper import ProcessState, process_state
from tests.servers.process import data_root, wait_until, wait_until_gone

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


class Suite:
    """A small test suite in a folder of its own, run by a pytest of its own."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder = folder
        self.data = data
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith("PYTEST")
        }
        self.environment |= {"POSTROOM_TEST_DATA": str(data), "PYTHONPATH": str(ROOT)}
        self.environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they are slow, and of no use
        (folder / "pytest.ini").write_text("[pytest]\n")

    def command(self, source: str, *options: str) -> list[str]:
        (self.folder / "test_it.py").write_text(source)
        pytest_itself = [sys.executable, "-m", "pytest", "-p", "tests.servers.plugin"]
        quiet = ["-p", "xdist", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--strict-markers"]
        return [*pytest_itself, *quiet, *options, str(self.folder)]

    def run(self, source: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(source, *options),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def notes(self) -> list[str]:
        """Give what the tests of the suite wrote down."""
        return [file.read_text() for file in self.folder.glob("*.note")]


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Suite]:
    data = Path(tempfile.mkdtemp(prefix="postroom-plugin-", dir=data_root()))
    data.chmod(0o755)
    yield Suite(tmp_path, data)
    shutil.rmtree(data, ignore_errors=True)


NOTE = """
import os, pathlib, pytest
def note(name, text):
    pathlib.Path(__file__).with_name(f"{name}.note").write_text(text)
"""


@pytest.mark.server
@pytest.mark.parametrize("workers", [[], ["-n", "2", "--dist", "each"]], ids=["alone", "workers"])
def test_one_start_for_all_workers_and_nothing_left(suite: Suite, workers: list[str]) -> None:
    done = suite.run(
        NOTE
        + """
import psycopg
def test_one(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        [pid] = connection.execute("SELECT pg_backend_pid()").fetchone()
    note(os.getpid(), postgres_url)
def test_two(postgres_url):
    pass
""",
        *workers,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(suite.notes()) == (2 if workers else 1)
    assert len(set(suite.notes())) == 1
    assert os.listdir(suite.data) == []


@pytest.mark.server
def test_the_death_of_the_controller_ends_the_servers(suite: Suite) -> None:
    source = (
        NOTE
        + """
from tests.servers.keeper import descendants
def test_one(postgres_url):
    pids = " ".join(str(one.pid) for one in descendants(os.getpid()))
    note("pids.part", pids)
    os.rename("pids.part.note", "pids.note")
    input_that_never_comes = os.pipe()
    os.read(input_that_never_comes[0], 1)
"""
    )
    with subprocess.Popen(
        suite.command(source, "-n", "1"),
        cwd=suite.folder,
        env=suite.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as controller:
        noted = suite.folder / "pids.note"
        wait_until(
            lambda: noted.exists() or controller.poll() is not None,
            within=60,
            what="a started server",
        )
        found = [process_state(int(pid)) for pid in noted.read_text().split()]
        processes: list[ProcessState] = [one for one in found if one is not None]
        assert len(processes) >= 2
        controller.kill()
    wait_until_gone(processes)
    wait_until(lambda: os.listdir(suite.data) == [], within=5, what="the end of the run's folder")


def test_a_variable_wins_over_a_start(suite: Suite) -> None:
    suite.environment["POSTROOM_TEST_KAFKA_CLUSTER_URL"] = "kafka://elsewhere:9092"
    done = suite.run(NOTE + "def test_one(kafka_cluster_url): note('url', kafka_cluster_url)")
    assert done.returncode == 0, done.stdout + done.stderr
    assert suite.notes() == ["kafka://elsewhere:9092"]


def test_nothing_is_made_that_nobody_asks_for(suite: Suite) -> None:
    done = suite.run(NOTE + f"def test_one(): note('data', str(os.listdir({str(suite.data)!r})))")
    assert done.returncode == 0, done.stdout + done.stderr
    assert suite.notes() == ["[]"]


@pytest.mark.parametrize("use", ["def test_one(mongo_url)", "def test_one(own_server)"])
def test_a_missing_server_fails_and_says_what_to_run(suite: Suite, use: str) -> None:
    suite.environment["POSTROOM_TEST_CACHE"] = str(suite.folder / "empty")
    done = suite.run(f"{use}: own_server('mongo')")
    assert done.returncode == 1
    assert "python -m tests.servers install" in done.stdout
    assert "skipped" not in done.stdout
    assert os.listdir(suite.data) == []


def test_tests_with_a_server_are_marked(suite: Suite) -> None:
    source = (
        "import pytest\n"
        "def test_with(mongo_url): pass\ndef test_own(own_server): pass\ndef test_without(): pass\n"
        "@pytest.mark.parametrize('name', ['mongo_url', 'other'])\ndef test_by_name(name): pass\n"
    )
    done = suite.run(source, "-m", "not server")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 3 deselected" in done.stdout
