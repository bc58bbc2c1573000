"""PostgreSQL: Debian's own, and a newer one from the cache."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.servers import programs
from tests.servers.process import Server, free_port


class Postgres(Server):
    """PostgreSQL 15 with logical decoding on; user postgres, no password."""

    name = "postgres"
    system_user = "postgres"  # it refuses to run as root
    stop_signal = signal.SIGINT  # after SIGKILL it would leave shared memory behind

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def data(self) -> Path:
        """PostgreSQL's data directory."""
        return self.folder / "data"

    def programs(self) -> Path:
        """Give the folder with initdb and postgres."""
        return programs.postgres_bin()

    def prepare(self) -> None:
        text = ["--encoding=UTF8", "--locale=C.UTF-8"]
        # --no-sync: files made here need not survive a power cut; the server itself does fsync.
        trust = ["--auth=trust", "--username=postgres", "--no-sync"]
        self.run([self.programs() / "initdb", "-D", self.data, *trust, *text])

    def command(self) -> Sequence[str | Path]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",  # their paths may be 107 bytes long only
            "wal_level": "logical",
            "max_connections": "200",
            # In files of the data directory, which go with it, not in the machine's memory.
            "dynamic_shared_memory_type": "mmap",
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [self.programs() / "postgres", "-D", self.data, "-p", str(self.port), *options]

    def answers(self) -> bool:
        import psycopg

        with psycopg.connect(self.url, connect_timeout=5) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)

    def stop(self) -> None:
        if self._keeper is not None and not self.pids:
            self._remove_shared_memory()
        super().stop()

    def _remove_shared_memory(self) -> None:
        # A killed server leaves one small System V segment, named in the seventh line.
        with contextlib.suppress(FileNotFoundError, IndexError):
            line = (self.data / "postmaster.pid").read_text().splitlines()[6]
            subprocess.run(["ipcrm", "-m", line.split()[1]], capture_output=True, check=False)


class PostgresReplica(Postgres):
    """A streaming replica of a running PostgreSQL 15, asynchronous."""

    name = "postgres_replica"

    def __init__(self, *, primary: Postgres, **options: Any) -> None:
        super().__init__(**options)
        self._primary = primary

    def prepare(self) -> None:
        source = f"host=127.0.0.1 port={self._primary.port} user=postgres"
        copy = ["-D", self.data, "-d", source, "--checkpoint=fast", "--no-sync"]
        self.run([self.programs() / "pg_basebackup", "--write-recovery-conf", *copy])

    def wait_caught_up(self) -> None:
        """Wait until it has everything that the primary has written so far."""
        (last,) = _ask(self._primary.url, "SELECT pg_current_wal_insert_lsn()::text")
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{last}'"
        self.wait_for(lambda: _ask(self.url, replayed) == (True,), "the replica to catch up")

    def cut(self) -> None:
        """End the replication: what the primary writes from now on never arrives.

        To freeze the receiver would not do: it would read on from its socket's buffer.
        """
        _ask(self.url, "ALTER SYSTEM SET primary_conninfo = ''")
        _ask(self.url, "SELECT pg_reload_conf()")
        receivers = "SELECT count(*) FROM pg_stat_wal_receiver"
        self.wait_for(lambda: _ask(self.url, receivers) == (0,), "the end of the receiver")

    def promote(self) -> None:
        """Make it the primary."""
        _ask(self.url, "SELECT pg_promote()")
        self.wait_for(lambda: _ask(self.url, "SELECT pg_is_in_recovery()") == (False,), "promotion")


def _ask(url: str, sql: str) -> tuple[Any, ...]:
    import psycopg

    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(sql)
        return (cursor.fetchone() if cursor.description else None) or ()


class Postgres18(Postgres):
    """PostgreSQL 18 from the cache."""

    name = "postgres18"

    def programs(self) -> Path:
        home = programs.postgres18_home()
        if self.user is None or all(may_enter(folder) for folder in (home, *home.parents)):
            return home / "bin"
        # The cache lies in a home folder that the server's user may not enter.
        copy = self.folder / "programs"
        if not copy.exists():
            copy_or_link(home, copy)
        return copy / "bin"


def may_enter(folder: Path) -> bool:
    """Say whether every user may enter this folder."""
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def copy_or_link(source: Path, target: Path) -> None:
    """Copy a folder; on the same disk by hard links, which take no time and no space."""

    def link(one: str, other: str) -> None:
        try:
            os.link(one, other, follow_symlinks=False)
        except OSError:
            shutil.copy2(one, other, follow_symlinks=False)

    shutil.copytree(source, target, symlinks=True, copy_function=link)
