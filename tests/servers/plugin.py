"""A pytest plugin: one start of each server per test run, shared by all workers.

The first worker that needs a server starts it, under a lock; the others read its URL from a file.
The servers belong to the process that began the run (with xdist the controller), not to the
worker: they end when the run ends, whichever way it does. A variable such as
POSTROOM_TEST_POSTGRES_URL wins over a start.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.catalog import SERVERS
from tests.servers.keeper import ProcessState, is_running, signal_all
from tests.servers.pgbouncer import PgBouncer
from tests.servers.process import Running, ServerError, data_root, wait_until_gone

FIXTURES = {f"{name}_url": name for name in SERVERS}
OWN = "own_server"


class Run:
    """The servers of one test run, known to all its workers by files in one folder."""

    def __init__(self, folder: Path, owner: int) -> None:
        self.folder = folder
        self.owner = owner

    def url(self, name: str) -> str:
        """Give a server's URL; start the server if nobody in this run has."""
        if given := os.environ.get(f"POSTROOM_TEST_{name.upper()}_URL"):
            return given
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o755)  # servers that run as another user must pass through
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self._read(name) or self._start(name)
        if "error" in state:  # also for the tests after the first: no second try
            raise ServerError(state["error"])
        return str(state["url"])

    def stop(self) -> None:
        """End every server of the run and remove the folder."""
        states = [json.loads(file.read_text()) for file in self.folder.glob("*.json")]
        keepers = [ProcessState(*one) for state in states for one in state.get("keepers", [])]
        signal_all([keeper for keeper in keepers if is_running(keeper)], signal.SIGTERM)
        wait_until_gone(keepers)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self, name: str) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            state: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
            return state
        return None

    def _start(self, name: str) -> dict[str, Any]:
        try:
            server = SERVERS[name].make(owner=self.owner, under=self.folder).start()
        except ServerError as error:
            state: dict[str, Any] = {"error": str(error)}
        else:
            state = {"url": server.url, "keepers": server.keepers}
            server.release()
        part = self.folder / f"{name}.part"
        part.write_text(json.dumps(state))
        part.rename(self.folder / f"{name}.json")
        return state


RUN = pytest.StashKey[Run]()


def pytest_configure(config: pytest.Config) -> None:
    """Join the run that the controller began, or begin one."""
    config.addinivalue_line("markers", "server: needs a real server (set from its fixtures)")
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None:
        folder = data_root() / f"postroom-run-{uuid.uuid4().hex[:12]}"
        config.stash[RUN] = Run(folder, os.getpid())
    else:
        config.stash[RUN] = Run(Path(worker["servers_folder"]), worker["servers_owner"])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a new worker of xdist which run it belongs to."""
    run = node.config.stash[RUN]
    node.workerinput["servers_folder"] = str(run.folder)
    node.workerinput["servers_owner"] = run.owner


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers when the whole run ends."""
    if not hasattr(config, "workerinput") and RUN in config.stash:
        config.stash[RUN].stop()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a server, before `-m` chooses among them."""
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            # A parameter may be the name of a fixture that is asked for by it.
            names |= {value for value in item.callspec.params.values() if isinstance(value, str)}
        if names & {*FIXTURES, OWN}:
            item.add_marker("server")


def _url_or_fail(config: pytest.Config, name: str) -> str:
    # A missing server is a failure and never a skip: a skipped test proves nothing.
    try:
        return config.stash[RUN].url(name)
    except ServerError as error:
        pytest.fail(f"{name}: {error}", pytrace=False)


@pytest.fixture(scope="session")
def postgres_url(pytestconfig: pytest.Config) -> str:
    """PostgreSQL 15."""
    return _url_or_fail(pytestconfig, "postgres")


@pytest.fixture(scope="session")
def postgres18_url(pytestconfig: pytest.Config) -> str:
    """PostgreSQL 18."""
    return _url_or_fail(pytestconfig, "postgres18")


@pytest.fixture(scope="session")
def pgbouncer_url(pytestconfig: pytest.Config, postgres_url: str) -> Iterator[str]:
    """PgBouncer in transaction mode, in front of PostgreSQL 15; one for each worker, it is light."""
    with PgBouncer(postgres_url, owner=pytestconfig.stash[RUN].owner) as bouncer:
        yield bouncer.url


@pytest.fixture(scope="session")
def mariadb_url(pytestconfig: pytest.Config) -> str:
    """MariaDB 10.11."""
    return _url_or_fail(pytestconfig, "mariadb")


@pytest.fixture(scope="session")
def mongo_url(pytestconfig: pytest.Config) -> str:
    """MongoDB, a replica set of one."""
    return _url_or_fail(pytestconfig, "mongo")


@pytest.fixture(scope="session")
def mongo_cluster_url(pytestconfig: pytest.Config) -> str:
    """MongoDB, a replica set of three."""
    return _url_or_fail(pytestconfig, "mongo_cluster")


@pytest.fixture(scope="session")
def mongo_standalone_url(pytestconfig: pytest.Config) -> str:
    """MongoDB without transactions and change streams."""
    return _url_or_fail(pytestconfig, "mongo_standalone")


@pytest.fixture(scope="session")
def kafka_url(pytestconfig: pytest.Config) -> str:
    """Apache Kafka, one broker."""
    return _url_or_fail(pytestconfig, "kafka")


@pytest.fixture(scope="session")
def kafka_cluster_url(pytestconfig: pytest.Config) -> str:
    """Apache Kafka, three brokers."""
    return _url_or_fail(pytestconfig, "kafka_cluster")


@pytest.fixture(scope="session")
def rabbitmq_url(pytestconfig: pytest.Config) -> str:
    """RabbitMQ."""
    return _url_or_fail(pytestconfig, "rabbitmq")


@pytest.fixture
def own_server() -> Iterator[Callable[..., Any]]:
    """Start a server for this test alone, to be killed and frozen: `own_server("postgres")`."""
    with contextlib.ExitStack() as stack:

        def start(name: str, **options: Any) -> Running:
            try:
                return stack.enter_context(SERVERS[name].make(**options))
            except ServerError as error:
                pytest.fail(f"{name}: {error}", pytrace=False)

        yield start
