"""MariaDB, for the SQL that it shares with MySQL 8."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

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


BINLOG = ("--log-bin=binlog", "--binlog-format=ROW")


class MariaDBPrimary(MariaDB):
    """A MariaDB that writes a binary log, from its first transaction on."""

    name = "mariadb_primary"

    def __init__(self, **options: Any) -> None:
        super().__init__(arguments=["--server-id=1", *BINLOG], **options)


class MariaDBReplica(MariaDB):
    """An asynchronous replica of a running MariaDBPrimary, read-only until it is promoted."""

    name = "mariadb_replica"

    def __init__(self, *, primary: MariaDBPrimary, **options: Any) -> None:
        super().__init__(arguments=["--server-id=2", "--read-only", *BINLOG], **options)
        self._primary = primary

    def start(self) -> Self:
        super().start()
        try:
            self._follow()
        except BaseException:
            self.stop()
            raise
        return self

    def _follow(self) -> None:
        source = f"MASTER_HOST='127.0.0.1', MASTER_PORT={self._primary.port}, MASTER_USER='root'"
        # What this server wrote itself, an empty database, is no part of the primary's history.
        _ask(self.port, "RESET MASTER")
        _ask(self.port, f"CHANGE MASTER TO {source}, MASTER_USE_GTID=slave_pos")
        _ask(self.port, "START REPLICA")
        self.wait_caught_up()

    def wait_caught_up(self) -> None:
        """Wait until it has everything that the primary has written so far."""
        ((last,),) = _ask(self._primary.port, "SELECT @@gtid_binlog_pos")
        waited = f"SELECT MASTER_GTID_WAIT('{last}', 1)"
        self.wait_for(lambda: _ask(self.port, waited) == ((0,),), "the replica to catch up")

    def cut(self) -> None:
        """End the replication: what the primary writes from now on never arrives."""
        _ask(self.port, "STOP REPLICA")

    def promote(self) -> None:
        """Make it the primary."""
        _ask(self.port, "RESET REPLICA ALL")
        _ask(self.port, "SET GLOBAL read_only = 0")


def _ask(port: int, sql: str) -> tuple[tuple[Any, ...], ...]:
    import pymysql

    login: dict[str, Any] = {"host": "127.0.0.1", "port": port, "user": "root"}
    with pymysql.connect(**login, connect_timeout=5, read_timeout=30, autocommit=True) as one:
        with one.cursor() as cursor:
            cursor.execute(sql)
            return tuple(cursor.fetchall())
