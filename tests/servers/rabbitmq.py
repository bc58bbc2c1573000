"""RabbitMQ, with an Erlang port mapper of its own."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from tests.servers import programs
from tests.servers.keeper import run_as
from tests.servers.process import Server, free_port, listens


class RabbitMQ(Server):
    """RabbitMQ 3.10 without plugins, which make its start longer; user and password are guest."""

    name = "rabbitmq"
    system_user = "rabbitmq"

    def __init__(self, *, log_level: str = "info", **options: Any) -> None:
        super().__init__(**options)
        self.log_level = log_level
        self.port = free_port()
        self.distribution_port = free_port()
        self.mapper_port = free_port()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def version(self) -> str:
        return self.ctl("version").strip()

    def prepare(self) -> None:
        self.write(
            "rabbitmq.conf",
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nlog.console.level = {self.log_level}\n",
        )
        self.write("enabled_plugins", "[].\n")
        self.write("rabbitmq-env.conf", "")

    def environment(self) -> dict[str, str]:
        return {
            "RABBITMQ_NODENAME": f"postroom-{self.port}@localhost",
            "RABBITMQ_CONF_ENV_FILE": f"{self.folder}/rabbitmq-env.conf",
            "RABBITMQ_CONFIG_FILE": f"{self.folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{self.folder}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{self.folder}/data",
            "RABBITMQ_LOG_BASE": f"{self.folder}",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "ERL_EPMD_PORT": str(self.mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def programs(self) -> Path:
        """Give the folder with RabbitMQ's own scripts."""
        return programs.rabbitmq_bin()

    def command(self) -> Sequence[str | Path]:
        return [self.programs() / "rabbitmq-server"]

    def answers(self) -> bool:
        if not listens(self.port):
            return False
        in_thread(open_and_close(self.url))
        return True

    def ctl(self, *words: str) -> str:
        """Run rabbitmqctl against this server and give what it printed."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [self.programs() / "rabbitmqctl", "--quiet", *words],
            env=self.variables(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
            **run_as(self.user),
        )
        return done.stdout


class RabbitMQ4(RabbitMQ):
    """RabbitMQ 4.0, in which a quorum queue drops what it has delivered 20 times by default."""

    name = "rabbitmq4"
    system_user = None  # the cache may lie in a folder that nobody else may enter

    def programs(self) -> Path:
        return programs.rabbitmq4_home() / "usr/lib/rabbitmq/bin"

    def environment(self) -> dict[str, str]:
        erlang = programs.rabbitmq4_home() / "usr/lib/erlang/bin"
        path = f"{erlang}:{os.environ.get('PATH', os.defpath)}"
        return {**super().environment(), "PATH": path}


async def open_and_close(url: str) -> None:
    """Open an AMQP connection and a channel."""
    import aio_pika

    async with asyncio.timeout(10), await aio_pika.connect(url) as connection:
        await connection.channel()


def in_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, also when the caller's thread runs an event loop."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
