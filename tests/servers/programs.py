"""Where the servers' programs are: those of Debian packages, and those in the cache."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

from tests.servers.process import NotInstalledError

POSTGRES_VERSION = "15"
POSTGRES18_VERSION = "18.1.0"
MONGODB_VERSION = "6.0.5"
KAFKA_VERSION = "4.1.1"
RABBITMQ4 = "rabbitmq-4.0"

# Debian keeps servers in folders that the PATH of an ordinary user lacks.
SYSTEM_PATH = os.pathsep.join(["/usr/local/sbin", "/usr/sbin", "/sbin"])


def cache_folder() -> Path:
    """Give the folder for downloads, outside of the clone, so that a second run is quick."""
    if chosen := os.environ.get("POSTROOM_TEST_CACHE"):
        return Path(chosen).absolute()
    general = os.environ.get("XDG_CACHE_HOME")
    return (Path(general) if general else Path.home() / ".cache") / "postroom-tests"


def program(name: str) -> Path:
    """Find a program on the PATH, or where Debian puts servers."""
    path = os.environ.get("PATH", os.defpath) + os.pathsep + SYSTEM_PATH
    if found := shutil.which(name, path=path):
        return Path(found)
    raise NotInstalledError(name)


def packaged(package: str, tail: str, mode: int = os.X_OK) -> Path:
    """Find the file of a Debian package whose path ends like this."""
    for line in _files_of(package):
        if line.endswith(tail) and os.access(line, mode):
            return Path(line)
    raise NotInstalledError(package)


@functools.cache
def _files_of(package: str) -> list[str]:
    try:
        listing = subprocess.run(
            ["dpkg", "-L", package], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return []
    return listing.stdout.splitlines()


def forget() -> None:
    """Look again at what is installed."""
    _files_of.cache_clear()


def postgres_bin() -> Path:
    """Give the folder with initdb and postgres of Debian's PostgreSQL."""
    return packaged(f"postgresql-{POSTGRES_VERSION}", "/bin/initdb").parent


def rabbitmq_bin() -> Path:
    """Give the folder with RabbitMQ's own scripts; those on the PATH change the user."""
    return packaged("rabbitmq-server", "/rabbitmq/bin/rabbitmq-server").parent


def rabbitmq4_home() -> Path:
    """Give the folder with RabbitMQ 4 and its Erlang, which is newer than Debian's own here."""
    return _cached(RABBITMQ4, "usr/lib/rabbitmq/bin/rabbitmq-server")


def nss_wrapper() -> Path:
    """Give the library that, preloaded, makes a process read a hosts file of its own."""
    return packaged("libnss-wrapper", "/libnss_wrapper.so", os.R_OK)


def faketime_library() -> Path:
    """Give the library that, preloaded, makes a process read a clock that is wrong."""
    return packaged("libfaketime", "/libfaketimeMT.so.1", os.R_OK)


def postgres18_home() -> Path:
    """Give the folder with bin, lib and share of the newer PostgreSQL."""
    return _cached(f"postgres-{POSTGRES18_VERSION}", "bin/initdb")


def mongod() -> Path:
    """Give the MongoDB server."""
    return _cached(f"mongodb-{MONGODB_VERSION}", "mongod") / "mongod"


def kafka_jars() -> Path:
    """Give the folder with the jars of Apache Kafka."""
    return _cached(f"kafka-{KAFKA_VERSION}", f"kafka_2.13-{KAFKA_VERSION}.jar")


def _cached(name: str, proof: str) -> Path:
    folder = cache_folder() / name
    if not (folder / proof).exists():
        raise NotInstalledError(name)
    return folder
