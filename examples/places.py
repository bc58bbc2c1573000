"""Servers that the examples use: a database for one run, and a broker that can be stopped.

Each run has new databases, topics and queues on the servers that it is given, and removes them at
the end, so that an example can be run again and never touches other data.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from postroom import Url

URLS = {  # those of the compose files
    "postgres": "postgresql://postroom:postroom@127.0.0.1:5432/postroom",
    "mariadb": "mysql://root:postroom@127.0.0.1:3306/postroom",
    "mongo": "mongodb://127.0.0.1:27017/postroom?replicaSet=rs0&directConnection=true",
    "kafka": "kafka://127.0.0.1:9092",
    "rabbitmq": "amqp://guest:guest@127.0.0.1:5672/",
}


def new_name() -> str:
    """Return a name that no other run uses."""
    return f"example_{uuid4().hex[:8]}"


def arguments(name: str, about: str | None, *servers: str) -> argparse.ArgumentParser:
    """Return a parser with a URL for each server; `stop` and `start` for the last one, a broker."""
    parser = argparse.ArgumentParser(
        prog=f"python -m examples.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for server in servers:
        parser.add_argument(f"--{server}", default=URLS[server], metavar="URL", help=URLS[server])
    compose = f"docker compose -f {Path(__file__).parent / name / 'compose.yaml'}"
    broker = servers[-1]
    if broker in ("kafka", "rabbitmq"):
        parser.add_argument(
            "--stop", default=f"{compose} kill {broker}", metavar="COMMAND",
            help="stops the broker; empty: the example does without an outage",
        )  # fmt: skip
        parser.add_argument(
            "--start", default=f"{compose} up --wait {broker}", metavar="COMMAND",
            help="starts it again, and returns when it answers",
        )  # fmt: skip
    return parser


class Outage:
    """Stops and starts a broker by commands."""

    def __init__(self, stop: str, start: str) -> None:
        self._stop, self._start = stop, start

    def __bool__(self) -> bool:
        return bool(self._stop and self._start)

    def begin(self) -> None:
        """Stop the broker."""
        _run(self._stop)

    def end(self) -> None:
        """Start the broker."""
        _run(self._start)


def _run(command: str) -> None:
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stderr or done.stdout}")


@contextmanager
def postgres_database(url: str) -> Iterator[str]:
    """Create a database for this run; yields its URL."""
    import psycopg

    name = new_name()
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
    try:
        yield _with_database(url, name)
    finally:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def mariadb_database(url: str) -> Iterator[str]:
    """Create a database for this run; yields its URL."""
    import pymysql

    name, at = new_name(), Url.parse(url)
    login = {
        "host": at.host,
        "port": at.port or 3306,
        "user": at.user,
        "password": at.password or "",
    }

    def run(sql: str) -> None:
        with pymysql.connect(**login) as server, server.cursor() as cursor:
            cursor.execute(sql)

    run(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    try:
        yield _with_database(url, name)
    finally:
        run(f"DROP DATABASE {name}")


@contextmanager
def mongo_database(url: str) -> Iterator[str]:
    """Name a database for this run; yields its URL."""
    from pymongo import MongoClient

    name = new_name()
    try:
        yield _with_database(url, name)
    finally:
        with MongoClient(url) as client:
            client.drop_database(name)


def servers_of(kafka_url: str) -> str:
    """Return the addresses of a Kafka URL, as librdkafka wants them."""
    hosts = Url.parse(kafka_url).hosts
    return ",".join(f"{host.name}:{host.port or 9092}" for host in hosts)


@contextmanager
def kafka_topic(kafka_url: str, *, partitions: int | None = None) -> Iterator[str]:
    """Name a topic for this run, or create it; yields its name."""
    from confluent_kafka.admin import AdminClient, NewTopic

    name = new_name()
    admin = AdminClient({"bootstrap.servers": servers_of(kafka_url), "log_level": 0})
    if partitions:
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    try:
        yield name
    finally:
        for gone in admin.delete_topics([name]).values():
            gone.exception(30)


def with_option(url: str, **options: str) -> str:
    """Return a URL with more options."""
    text = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{url}{'&' if '?' in url else '?'}{text}"


def _with_database(url: str, name: str) -> str:
    address, mark, options = url.partition("?")
    return f"{address.rpartition('/')[0]}/{name}{mark}{options}"
