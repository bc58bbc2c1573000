"""The SQLite store: the Store port over one file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, Unpack

from postroom.commands import AuditEntry, Edit
from postroom.errors import SchemaError, StoreError
from postroom.lookup import MAX_CAUSES, Accepted, Details, Filter, InboxStats, Standing, Stats
from postroom.model.controls import Control
from postroom.model.dead_letters import DeadCause
from postroom.model.diagnostics import Finding
from postroom.model.url import Url, naming
from postroom.operation import LEASE_SECONDS, Change, NewOperation, Operation, Step
from postroom.options import SqliteOptions
from postroom.record import Record, stored_error
from postroom.settlement import Settlement
from postroom.store import (
    Capabilities,
    Member,
    Membership,
    PrunedDead,
    ReadRequest,
    Schema,
    Staged,
    Tables,
)
from postroom.stores.migration_scripts import Place, script
from postroom.stores.opening import ContextManager
from postroom.stores.sqlite import (
    audit,
    blocks,
    commands,
    controls,
    leases,
    lookup,
    operations,
    prune,
    read,
    schema,
    settle,
    stage,
    waiting,
)
from postroom.stores.sqlite.handler_transactions import HandlerTransactions
from postroom.stores.sqlite.search import Search
from postroom.stores.sqlite.settings import read_settings
from postroom.stores.sqlite.statements import load_migrations, load_queries
from postroom.stores.sqlite.thread import Database, DatabaseThread, OpenFile
from postroom.transaction import Proof
from postroom.transactions.acceptances import Acceptances, forget_old

if TYPE_CHECKING:
    import aiosqlite

T = TypeVar("T")

_LOOK_SECONDS = 0.02
_CACHE_KIB = 16_384  # a settle beside a million done rows touches more pages than the default holds
_MIGRATE_SECONDS = 60.0


class SqliteStore(ContextManager):
    """An outbox in an SQLite file, served by several relays and processes of one host.

    Relays write through one connection and read through another, each in its own thread;
    operator commands and the watch for changes use a third. Every call is one hop to a thread.

    url       `sqlite:///relative.db`, `sqlite:////absolute.db`, or a Path. The file is created by
              `migrate`, never by `open`
    options   those of SqliteSettings, by name or in the URL
    """

    capabilities = Capabilities(
        transactions=True, concurrent_writers=False, server_clock=False, notify=True, shared=True
    )

    def __init__(self, url: str | Url | Path, **options: Unpack[SqliteOptions]) -> None:
        self.path, self.settings = read_settings(url, options)
        self.prefix = self.settings.prefix
        self.tables = Tables(self.prefix)
        self._writer: DatabaseThread | None = None
        self._reader: DatabaseThread | None = None
        self._looker: DatabaseThread | None = None
        self._seen: int | None = None
        self._handler_transactions = HandlerTransactions(
            self._target("rw"), self.settings.busy_seconds, self.path
        )

    # -- life ---------------------------------------------------------------------------------
    async def open(self) -> None:
        if self._writer is not None:
            return
        if not self.path.exists():
            raise SchemaError(
                f"{self.path} does not exist; run: postroom migrate --store {self.url}"
            )
        self._writer = DatabaseThread("writer", self._connect)
        self._reader = DatabaseThread("reader", partial(self._connect, read_only=True))
        self._looker = DatabaseThread("looker", partial(self._connect, read_only=True))
        try:
            await self._write.call(lambda db: schema.check(db.connection, self.prefix, self.url))
            self._seen = await self._look.call(_data_version)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        threads = (self._writer, self._reader, self._looker)
        self._writer = self._reader = self._looker = None
        for thread in threads:
            if thread is not None:
                await thread.close()
        await self._handler_transactions.close()

    async def migrate(self) -> int:
        if not self.path.parent.is_dir():
            raise StoreError(
                f"the folder {self.path.parent} does not exist; create it for {self.path.name}"
            )
        return await self._once(lambda db: schema.migrate(db, self.prefix, _MIGRATE_SECONDS))

    async def _once(self, request: Callable[[Database], T]) -> T:
        """Run a function on a new connection, which waits longer for its locks."""
        thread = DatabaseThread("migrate", partial(self._connect, create=True))
        try:
            return await thread.call(request)
        finally:
            await thread.close()

    @property
    def search(self) -> Search:
        return Search(self.prefix, self.ask, self._once)

    async def schema(self) -> Schema:
        newest = load_migrations(self.prefix)[-1].version
        if not self.path.exists():
            return Schema(0, newest)
        thread = DatabaseThread("schema", partial(self._connect, read_only=True))
        try:
            current = await thread.call(lambda db: schema.version(db.connection, self.prefix))
        finally:
            await thread.close()
        return Schema(current, newest)

    def migration_sql(self, after: int = 0, *, transaction: bool = True) -> str:
        return script(Place("sqlite", self.prefix), after, transaction=transaction)

    async def identity(self) -> str:
        return await self._look.call(lookup.identity)

    # -- lanes --------------------------------------------------------------------------------
    async def heartbeat(
        self, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
    ) -> Membership:
        return await self._write.call(
            lambda db: leases.heartbeat(db, stream, member, lease_seconds, held)
        )

    async def take(
        self, stream: str, owner: str, lanes: Sequence[int], lease_seconds: float
    ) -> dict[int, int]:
        return await self._write.call(
            lambda db: leases.take(db, stream, owner, lanes, lease_seconds)
        )

    async def retake(
        self,
        stream: str,
        owner: str,
        held: Mapping[int, int],
        lease_seconds: float,
        doubt_seconds: float = 0.0,
    ) -> dict[int, int]:
        return await self._write.call(
            lambda db: leases.retake(db, stream, owner, held, lease_seconds, doubt_seconds)
        )

    async def release(self, stream: str, owner: str, held: Mapping[int, int]) -> None:
        await self._write.call(lambda db: leases.release(db, stream, owner, held))

    async def leave(self, stream: str, owner: str) -> None:
        await self._write.call(lambda db: leases.leave(db, stream, owner))

    async def leases(self, stream: str) -> Membership:
        return await self._look.call(lambda db: leases.leases(db, stream))

    # -- events -------------------------------------------------------------------------------
    async def read(self, request: ReadRequest) -> list[Record]:
        return await self._read.call(lambda db: read.read(db, request))

    async def settle(self, settlement: Settlement) -> set[int]:
        return await self._write.call(lambda db: settle.settle(db, settlement))

    async def stage(self, stream: str, lanes: Sequence[int], limit: int) -> Staged:
        return await self._write.call(lambda db: stage.stage(db, stream, lanes, limit))

    async def repair_blocks(
        self, stream: str, owner: str, leases: Mapping[int, int], limit: int
    ) -> int:
        return await self._write.call(
            lambda db: blocks.repair_blocks(db, stream, owner, leases, limit)
        )

    async def prune(self, older_than_seconds: float, limit: int) -> int:
        return await self._write.call(lambda db: prune.prune(db, older_than_seconds, limit))

    async def prune_dead(
        self, stream: str, older_than_seconds: float, after_seq: int, limit: int
    ) -> PrunedDead:
        return await self._write.call(
            lambda db: prune.prune_dead(db, stream, older_than_seconds, after_seq, limit)
        )

    # -- operators ----------------------------------------------------------------------------
    async def get(self, event_id: str) -> Record | None:
        return await self._look.call(lambda db: lookup.get(db, event_id))

    async def holds(self, proofs: Sequence[Proof]) -> set[int]:
        return await self._look.call(lambda db: settle.holds(db, proofs))

    async def look_up(self, ids: Sequence[str]) -> dict[str, Standing]:
        return await self._look.call(lambda db: lookup.look_up(db, ids))

    async def open_keys(self, stream: str, limit: int) -> list[bytes]:
        return await self._look.call(lambda db: lookup.open_keys(db, stream, limit))

    async def find(self, wanted: Filter) -> list[Record]:
        return await self._look.call(lambda db: lookup.find(db, self.prefix, wanted))

    async def stats(self, stream: str | None = None) -> Stats:
        return await self._look.call(lambda db: lookup.stats(db, stream))

    async def streams(self) -> list[str]:
        return await self._look.call(lookup.streams)

    async def details(self, event_id: str) -> Details | None:
        return await self._look.call(lambda db: lookup.details(db, event_id))

    async def acceptances(self, ids: Sequence[str]) -> list[Accepted]:
        return await self._look.call(lambda db: lookup.acceptances(db, ids))

    async def dead_causes(
        self, stream: str | None = None, limit: int = MAX_CAUSES
    ) -> list[DeadCause]:
        return await self._look.call(lambda db: lookup.dead_causes(db, stream, limit))

    async def replay(
        self, ids: Sequence[str], *, new_id: bool = False, by: str | None = None
    ) -> int:
        return await self._write.call(lambda db: commands.replay(db, ids, new_id=new_id, by=by))

    async def bury(
        self,
        ids: Sequence[str],
        reason: str,
        *,
        by: str | None = None,
        history: str | None = None,
        attempts: int | None = None,
        whole: bool = False,
    ) -> int:
        return await self._write.call(
            lambda db: commands.bury(
                db,
                ids,
                stored_error(reason),
                by=by,
                history=history,
                attempts=attempts,
                whole=whole,
            )
        )

    async def skip(self, event_id: str, reason: str, *, by: str | None = None) -> None:
        await self._write.call(lambda db: commands.skip(db, event_id, stored_error(reason), by=by))

    async def edit(self, event_id: str, edit: Edit, *, by: str | None = None) -> str:
        return await self._write.call(lambda db: commands.edit(db, event_id, edit, by=by))

    async def forget(
        self,
        ids: Sequence[str],
        about: str,
        *,
        accepted: Sequence[str] = (),
        by: str | None = None,
    ) -> int:
        return await self._write.call(
            lambda db: commands.forget(db, ids, about, accepted=accepted, by=by)
        )

    async def inboxes(self) -> list[InboxStats]:
        return await self._look.call(lookup.inboxes)

    async def purge(self, ids: Sequence[str], *, by: str | None = None) -> int:
        return await self._write.call(lambda db: commands.purge(db, ids, by=by))

    async def retry_now(self, ids: Sequence[str], *, by: str | None = None) -> int:
        return await self._write.call(lambda db: waiting.retry_now(db, ids, by=by))

    async def cancel(self, ids: Sequence[str], reason: str = "", *, by: str | None = None) -> int:
        why = stored_error(reason)
        return await self._write.call(lambda db: waiting.cancel(db, ids, why, by=by))

    async def reschedule(self, ids: Sequence[str], at_us: int, *, by: str | None = None) -> int:
        return await self._write.call(lambda db: waiting.reschedule(db, ids, at_us, by=by))

    async def controls(self) -> list[Control]:
        return await self._look.call(controls.controls)

    async def set_control(
        self,
        kind: str,
        name: str,
        *,
        pause: bool,
        seconds: float | None = None,
        reason: str = "",
        by: str,
    ) -> bool:
        return await self._write.call(
            lambda db: controls.set_control(
                db, kind, name, pause=pause, seconds=seconds, reason=reason, by=by
            )
        )

    async def set_limits(
        self,
        kind: str,
        name: str,
        *,
        per_second: float | None,
        in_flight: int | None,
        by: str,
    ) -> bool:
        return await self._write.call(
            lambda db: controls.set_limits(
                db, kind, name, per_second=per_second, in_flight=in_flight, by=by
            )
        )

    async def record_audit(self, entry: AuditEntry) -> None:
        await self._write.call(lambda db: audit.record_audit(db, entry))

    async def audit_log(self, limit: int) -> list[AuditEntry]:
        return await self._look.call(lambda db: audit.audit_log(db, limit))

    # -- operations ---------------------------------------------------------------------------
    async def start_operation(self, new: NewOperation, *, by: str) -> tuple[Operation, bool]:
        return await self._write.call(lambda db: operations.start_operation(db, new, by=by))

    async def operations(self, *, unfinished: bool = False, limit: int = 100) -> list[Operation]:
        return await self._look.call(
            lambda db: operations.operations(db, unfinished=unfinished, limit=limit)
        )

    async def operation(self, operation_id: str) -> Operation | None:
        return await self._look.call(lambda db: operations.operation(db, operation_id))

    async def take_operation(
        self, operation_id: str, owner: str, lease_seconds: float = LEASE_SECONDS
    ) -> Operation | None:
        return await self._write.call(
            lambda db: operations.take_operation(db, operation_id, owner, lease_seconds)
        )

    async def advance_operation(self, held: Operation, step: Step) -> tuple[str, ...] | None:
        return await self._write.call(lambda db: operations.advance_operation(db, held, step))

    async def change_operation(self, operation_id: str, change: Change, *, by: str) -> bool:
        return await self._write.call(
            lambda db: operations.change_operation(db, operation_id, change, by=by)
        )

    async def prune_operations(self, older_than_seconds: float, limit: int) -> int:
        return await self._write.call(
            lambda db: prune.prune_operations(db, older_than_seconds, limit)
        )

    # -- waking and handlers ------------------------------------------------------------------
    async def wait_for_change(self, timeout_seconds: float) -> bool:
        """Return True once any connection to the file, in any process, has committed.

        The second of two calls notices a commit between them at once.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        before = self._seen
        while True:
            self._seen = await self._look.call(_data_version)
            if self._seen != before:
                return True
            left = deadline - loop.time()
            if left <= 0:
                return False
            await asyncio.sleep(min(_LOOK_SECONDS, left))

    def transaction(self) -> AbstractAsyncContextManager[aiosqlite.Connection]:
        """Open a transaction for a handler on an aiosqlite connection; commits on exit.

        It holds the file's only write lock: until it ends no relay can renew, settle or add, in any
        process. Keep it well below a third of the lease, and do slow work before it (H4). Handlers
        of this process take turns. Raises StoreRetryableError if the lock is not free within
        `busy_seconds`: nothing has run then.
        """
        return self._handler_transactions.transaction()

    def sync_transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """The same on a sqlite3 connection, for a handler in a thread."""
        return self._handler_transactions.sync_transaction()

    async def forget_accepted(
        self, consumer: str, older_than_seconds: float, kept_by: Sequence[str]
    ) -> int:
        # In threads: without the driver that async handlers need.
        rows = Acceptances.in_threads(self.sync_transaction, self.tables.qualified)
        return await forget_old(rows, consumer, older_than_seconds, self, kept_by)

    async def check(self) -> list[Finding]:
        from postroom.stores.sqlite import checks

        return await checks.examine(self)

    def complaints(self) -> list[tuple[str, str]]:
        return []

    # -- connections --------------------------------------------------------------------------
    async def ask(self, request: Callable[[Database], T]) -> T:
        """Run a query on the operators' connection, for checks."""
        return await self._look.call(request)

    @property
    def url(self) -> str:
        """The URL of this store, with the prefix of its tables as the only option."""
        return naming(f"sqlite:///{self.path}", prefix=self.tables.own_prefix)

    @property
    def _write(self) -> DatabaseThread:
        return _opened(self._writer)

    @property
    def _read(self) -> DatabaseThread:
        return _opened(self._reader)

    @property
    def _look(self) -> DatabaseThread:
        return _opened(self._looker)

    def _target(self, mode: str) -> str:
        return f"{self.path.as_uri()}?mode={mode}"

    def _connect(self, *, create: bool = False, read_only: bool = False) -> Database:
        file = OpenFile(self.path)  # first: a file that is replaced meanwhile is noticed
        connection = sqlite3.connect(
            self._target("rwc" if create else "rw"),
            uri=True,
            timeout=_MIGRATE_SECONDS if create else self.settings.busy_seconds,
            isolation_level=None,
            check_same_thread=False,  # opened, used and closed in its own thread
            cached_statements=256,
        )
        try:
            connection.execute(f"PRAGMA synchronous = {self.settings.synchronous}")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            if read_only:
                connection.execute("PRAGMA query_only = ON")
        except sqlite3.Error:
            connection.close()
            raise
        return Database(connection, load_queries(self.prefix), file)


def _opened(thread: DatabaseThread | None) -> DatabaseThread:
    if thread is None:
        raise StoreError("the store is not open; call `await store.open()` first")
    return thread


def _data_version(db: Database) -> int:
    (version,) = db.connection.execute("PRAGMA data_version").fetchone()
    return int(version)
