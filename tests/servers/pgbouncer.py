"""PgBouncer in transaction mode: what stands between many applications and their PostgreSQL."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tests.servers import programs
from tests.servers.process import Server, free_port


class PgBouncer(Server):
    """A pooler in front of a server; few connections behind it, so that clients share them."""

    name = "pgbouncer"
    system_user = "postgres"  # it refuses to run as root

    def __init__(self, target: str, *, settings: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.target = urlsplit(target)
        self.settings = settings
        self.port = free_port()

    @property
    def url(self) -> str:
        netloc = f"{self.target.username}@127.0.0.1:{self.port}"
        return urlunsplit(self.target._replace(netloc=netloc))

    def prepare(self) -> None:
        self.write("users.txt", f'"{self.target.username}" ""\n')
        self.write(
            "pgbouncer.ini",
            f"""[databases]
* = host={self.target.hostname} port={self.target.port} user={self.target.username}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
auth_file = {self.folder}/users.txt
pool_mode = transaction
default_pool_size = 3
{self.settings}
""",
        )

    def command(self) -> Sequence[str | Path]:
        return [programs.program("pgbouncer"), self.folder / "pgbouncer.ini"]

    def answers(self) -> bool:
        import psycopg

        with psycopg.connect(self.url, connect_timeout=5) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
