"""Database servers whose clock a test sets, by libfaketime: back, ahead, while they run."""

from pathlib import Path
from typing import Any

from tests.servers import programs
from tests.servers.mariadb import MariaDB
from tests.servers.mongo import Mongo
from tests.servers.postgres import Postgres
from tests.servers.process import Server

SHARED_MEMORY = Path("/dev/shm")


class Clocked(Server):
    """A server that reads the time through libfaketime; timers go on by the monotonic clock."""

    def prepare(self) -> None:
        super().prepare()  # type: ignore[safe-super]  # this class comes before a server's
        self.set_clock(0)

    def environment(self) -> dict[str, str]:
        if not (self.folder / "clock").exists():  # it is still being prepared
            return super().environment()
        return {
            **super().environment(),
            "LD_PRELOAD": str(programs.faketime_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self.folder / "clock"),
            "FAKETIME_NO_CACHE": "1",  # a change is in force at once
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set_clock(self, seconds: int) -> None:
        """Set the server's clock this many seconds ahead of the machine's, or behind it."""
        new = self.write("clock.new", f"{seconds:+d}\n")
        new.rename(self.folder / "clock")

    def stop(self) -> None:
        pids = self.pids
        super().stop()
        for pid in pids:  # libfaketime in a killed process leaves these behind
            for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
                (SHARED_MEMORY / name).unlink(missing_ok=True)


class ClockedPostgres(Clocked, Postgres):
    """PostgreSQL 15 with a clock of its own."""


class ClockedMariaDB(Clocked, MariaDB):
    """MariaDB 10.11 with a clock of its own."""


class ClockedMongo(Clocked, Mongo):
    """MongoDB, a replica set of one, with a clock of its own."""


CLOCKED: dict[str, Any] = {
    "postgres": ClockedPostgres,
    "mysql": ClockedMariaDB,
    "mongo": ClockedMongo,
}
