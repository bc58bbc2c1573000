"""MariaDB, for the SQL that it shares with MySQL 8."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.servers import programs
from tests.servers.process import Server, free_port


class MariaDB(Server):
    """MariaDB 10.11; user root, no password, an empty database named postroom."""

    name = "mariadb"
    system_user = "mysql"

    def __init__(self, *, arguments: Sequence[str] = (), **options: Any) -> None:
        super().__init__(**options)
        self.port = free_port()
        self._arguments = arguments

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/postroom"

    def prepare(self) -> None:
        self.run(
            [
                programs.program("mariadb-install-db"),
                "--no-defaults",
                f"--datadir={self.folder / 'data'}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ]
        )

    def command(self) -> Sequence[str | Path]:
        return [
            programs.program("mariadbd"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--socket=socket",  # in the data folder; a whole path may be 107 bytes long only
            f"--pid-file={self.folder / 'pid'}",
            "--innodb-buffer-pool-size=256M",
            # As in Debian's own configuration, and as MySQL 8 does.
            "--character-set-server=utf8mb4",
            "--collation-server=utf8mb4_general_ci",
            *self._arguments,
        ]

    def answers(self) -> bool:
        import pymysql

        login: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "user": "root"}
        connection = pymysql.connect(**login, connect_timeout=5, read_timeout=5)
        try:
            with connection.cursor() as cursor:
                cursor.execute("CREATE DATABASE IF NOT EXISTS postroom")
                return bool(cursor.execute("SELECT 1") == 1)
        finally:
            connection.close()
