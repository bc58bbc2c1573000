"""A connection and its dedicated thread."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from postroom.errors import StoreError, StoreRefusedError, StoreUnknownError
from postroom.model.clock import host_microseconds
from postroom.model.unreadable_rows import decode
from postroom.stores.sqlite.errors import is_busy, is_not_text, translate

T = TypeVar("T")


class OpenFile:
    """The file that a connection has opened: its path may later name another one.

    Restoring a backup by `mv`, or deleting the file, leaves open connections with a file that no
    longer has a name: they would go on reading and writing data that no other process sees.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._identity()  # None: it is about to be created

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @property
    def is_replaced(self) -> bool:
        """Whether the path no longer leads to the file that was opened."""
        now = self._identity()
        if self._seen is None:
            self._seen = now
        return now != self._seen

    def refuse_replaced(self) -> None:
        """Raise StoreError if the path no longer leads to the file that was opened."""
        if self.is_replaced:
            now = self._identity()
            what = "was deleted or moved" if now is None else "was replaced by another file"
            raise StoreError(
                f"{self._path} {what} while it was open; its connections are reopened. Stop "
                "relays and writers before restoring a file"
            )


class Database:
    """An open connection with its named statements."""

    def __init__(
        self, connection: sqlite3.Connection, sql: Mapping[str, str], file: OpenFile | None = None
    ) -> None:
        self.connection = connection
        self.file = file
        self._sql = sql

    def run(self, name: str, /, **values: Any) -> sqlite3.Cursor:
        """Execute the statement of this name."""
        return self.connection.execute(self._sql[name], values)

    def rows(self, name: str, /, **values: Any) -> list[Any]:
        """Execute a statement and fetch all rows."""
        try:
            return self.run(name, **values).fetchall()
        except sqlite3.OperationalError as error:
            if not is_not_text(error):
                raise
        with self.reading_any_text():
            return self.run(name, **values).fetchall()

    @contextmanager
    def reading_any_text(self) -> Iterator[None]:
        """Let text that is not UTF-8 pass, as `Undecodable`; this makes every text slower."""
        self.connection.text_factory = decode
        try:
            yield
        finally:
            self.connection.text_factory = str

    @contextmanager
    def change(self) -> Iterator[int]:
        """Hold the write lock and yield the time, read after the lock was taken (L2).

        Commits at the end, rolls back on any error. After an error of the COMMIT itself, other than
        busy, the outcome is unknown.
        """
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield host_microseconds()
        except BaseException:
            self._roll_back()
            raise
        try:
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if is_busy(error):
                raise
            raise StoreUnknownError(
                f"SQLite did not report whether it committed: {error}"
            ) from error

    @contextmanager
    def snapshot(self) -> Iterator[int]:
        """Let several statements see one snapshot; yields the time."""
        self.connection.execute("BEGIN")
        try:
            yield host_microseconds()
        finally:
            self._roll_back()

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")


class DatabaseThread:
    """Runs whole operations, one after another, on its own connection.

    A cancelled caller stops waiting; an operation that has begun still ends, with its commit or its
    rollback. After an error that may have damaged the connection, or when its file was replaced,
    the next operation gets a new one.
    """

    def __init__(self, name: str, connect: Callable[[], Database]) -> None:
        self._connect = connect
        self._database: Database | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"postroom-sqlite-{name}")

    async def call(self, work: Callable[[Database], T]) -> T:
        """Run the work in the thread; SQLite's errors are translated to those of the port."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    async def close(self) -> None:
        """Wait for the running operation, close the connection, end the thread."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._drop)
        finally:
            self._thread.shutdown(wait=False)

    def _run(self, work: Callable[[Database], T]) -> T:
        try:
            if self._database is None:
                self._database = self._connect()
            self._refuse_replaced(self._database)
            return work(self._database)
        except StoreUnknownError:
            self._drop()
            raise
        except sqlite3.Error as error:
            if not is_busy(error):
                self._drop()
            raise translate(error) from error
        except OverflowError as error:  # a number that SQLite cannot hold; nothing was sent
            raise StoreRefusedError(f"SQLite: {error}") from error

    def _refuse_replaced(self, database: Database) -> None:
        try:
            if database.file is not None:
                database.file.refuse_replaced()
        except StoreError:
            self._drop()
            raise

    def _drop(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            with suppress(sqlite3.Error):
                database.connection.close()
