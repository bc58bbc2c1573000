"""The PostgreSQL store: the Store port over a pool of connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, Unpack

import psycopg
from psycopg import AsyncConnection, Connection

from postroom.commands import AuditEntry, Edit
from postroom.errors import StoreError
from postroom.lookup import MAX_CAUSES, Accepted, Details, Filter, InboxStats, Standing, Stats
from postroom.model.controls import Control
from postroom.model.dead_letters import DeadCause
from postroom.model.diagnostics import Finding
from postroom.model.url import Url, naming
from postroom.operation import LEASE_SECONDS, Change, NewOperation, Operation, Step
from postroom.options import PostgresOptions
from postroom.record import Record, stored_error
from postroom.settlement import Settlement
from postroom.store import (
    Adopted,
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
from postroom.stores.postgres import (
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
from postroom.stores.postgres.connector import Connector
from postroom.stores.postgres.database import Database
from postroom.stores.postgres.errors import could_not_connect, is_fatal, translate
from postroom.stores.postgres.floors import Floors
from postroom.stores.postgres.handler_transactions import HandlerTransactions
from postroom.stores.postgres.listener import Listener
from postroom.stores.postgres.notifier import PostgresNotifier
from postroom.stores.postgres.search import Search
from postroom.stores.postgres.settings import PostgresSettings
from postroom.stores.postgres.statements import load_migrations, load_queries
from postroom.transaction import Proof
from postroom.transactions.acceptances import Acceptances, forget_old

_MIGRATE_SECONDS = 600


class PostgresStore(ContextManager):
    """An outbox in a PostgreSQL database, 14 or newer.

    url       `postgresql://user:password@host/database`; options of libpq, such as sslmode, go
              into the URL
    options   those of PostgresSettings, by name or in the URL

    Relays have a pool of connections, handlers' transactions another, and LISTEN its own
    connection. Works behind pgbouncer in transaction mode,
    where no notification arrives and relays poll.
    """

    capabilities = Capabilities(adopts=True)

    def __init__(self, url: str | Url, **options: Unpack[PostgresOptions]) -> None:
        self.settings = PostgresSettings.read(url, options)
        self.tables = Tables(self.settings.prefix, self.settings.schema)
        if not self.settings.notify:
            self.capabilities = Capabilities(notify=False, adopts=True)
        self._connector = Connector(self.settings)
        self._database: Database | None = None
        self._floors = Floors()
        self._listener = Listener(self._connector)
        self._notifier = PostgresNotifier(self.settings)
        self._handler_transactions: HandlerTransactions | None = None
        self._lifecycle_lock = asyncio.Lock()

    # -- life ---------------------------------------------------------------------------------
    async def open(self) -> None:
        async with self._lifecycle_lock:  # relays that start together share one pool
            if self._database is not None:
                return
            async with self._connected() as connection:
                await schema.check(connection, self.settings, self.url)
            database = Database(self._connector, load_queries(self.settings.tables))
            self._database = database
            self._floors = Floors()
            self._listener = Listener(self._connector)
            self._handler_transactions = HandlerTransactions(self._connector, self._added)
            await database.open()

    async def close(self) -> None:
        self._lifecycle_lock = asyncio.Lock()  # the next life may have another event loop
        database, self._database = self._database, None
        handler_transactions, self._handler_transactions = self._handler_transactions, None
        await self._listener.close()
        self._notifier.close()
        if handler_transactions is not None:
            await handler_transactions.close()
        if database is not None:
            await database.close()

    async def migrate(self) -> int:
        async with self._connected(migrating=True) as connection:
            return await schema.migrate(connection, self.settings)

    async def schema(self) -> Schema:
        newest = load_migrations(self.settings.prefix)[-1].version
        async with self._connected() as connection:
            return Schema(await schema.version(connection, self.settings), newest)

    @property
    def search(self) -> Search:
        return Search(self.settings, lambda: self.database, lambda: self._connected(migrating=True))

    def migration_sql(self, after: int = 0, *, transaction: bool = True) -> str:
        place = Place("postgres", self.settings.prefix, self.settings.schema)
        return script(place, after, transaction=transaction)

    async def identity(self) -> str:
        return await lookup.identity(self.database)

    # -- lanes --------------------------------------------------------------------------------
    async def heartbeat(
        self, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
    ) -> Membership:
        return await leases.heartbeat(self.database, stream, member, lease_seconds, held)

    async def take(
        self, stream: str, owner: str, lanes: Sequence[int], lease_seconds: float
    ) -> dict[int, int]:
        tokens = await leases.take(self.database, stream, owner, lanes, lease_seconds)
        self._floors.taken(stream, owner, tokens)
        return tokens

    async def retake(
        self,
        stream: str,
        owner: str,
        held: Mapping[int, int],
        lease_seconds: float,
        doubt_seconds: float = 0.0,
    ) -> dict[int, int]:
        tokens = await leases.retake(
            self.database, stream, owner, held, lease_seconds, doubt_seconds
        )
        self._floors.taken(stream, owner, tokens)
        return tokens

    async def release(self, stream: str, owner: str, held: Mapping[int, int]) -> None:
        await leases.release(self.database, stream, owner, held)

    async def leave(self, stream: str, owner: str) -> None:
        await leases.leave(self.database, stream, owner)

    async def leases(self, stream: str) -> Membership:
        return await leases.leases(self.database, stream)

    # -- events -------------------------------------------------------------------------------
    async def read(self, request: ReadRequest) -> list[Record]:
        return await read.read(self.database, self._floors, request)

    async def settle(self, settlement: Settlement) -> set[int]:
        return await settle.settle(self.database, self._floors, settlement)

    async def stage(self, stream: str, lanes: Sequence[int], limit: int) -> Staged:
        return await stage.stage(self.database, self._floors, stream, lanes, limit)

    async def repair_blocks(
        self, stream: str, owner: str, leases: Mapping[int, int], limit: int
    ) -> int:
        return await blocks.repair_blocks(self.database, self._floors, stream, owner, leases, limit)

    async def prune(self, older_than_seconds: float, limit: int) -> int:
        return await prune.prune(self.database, older_than_seconds, limit)

    async def prune_dead(
        self, stream: str, older_than_seconds: float, after_seq: int, limit: int
    ) -> PrunedDead:
        return await prune.prune_dead(self.database, stream, older_than_seconds, after_seq, limit)

    # -- operators ----------------------------------------------------------------------------
    async def get(self, event_id: str) -> Record | None:
        return await lookup.get(self.database, event_id)

    async def holds(self, proofs: Sequence[Proof]) -> set[int]:
        return await settle.holds(self.database, proofs)

    async def look_up(self, ids: Sequence[str]) -> dict[str, Standing]:
        return await lookup.look_up(self.database, ids)

    async def open_keys(self, stream: str, limit: int) -> list[bytes]:
        return await lookup.open_keys(self.database, stream, limit)

    async def find(self, wanted: Filter) -> list[Record]:
        return await lookup.find(self.database, self.settings.prefix, wanted)

    async def stats(self, stream: str | None = None) -> Stats:
        return await lookup.stats(self.database, stream)

    async def streams(self) -> list[str]:
        return await lookup.streams(self.database)

    async def details(self, event_id: str) -> Details | None:
        return await lookup.details(self.database, event_id)

    async def acceptances(self, ids: Sequence[str]) -> list[Accepted]:
        return await lookup.acceptances(self.database, ids)

    async def dead_causes(
        self, stream: str | None = None, limit: int = MAX_CAUSES
    ) -> list[DeadCause]:
        return await lookup.dead_causes(self.database, stream, limit)

    async def replay(
        self, ids: Sequence[str], *, new_id: bool = False, by: str | None = None
    ) -> int:
        return await commands.replay(self.database, ids, new_id=new_id, by=by)

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
        return await commands.bury(
            self.database,
            ids,
            stored_error(reason),
            by=by,
            history=history,
            attempts=attempts,
            whole=whole,
        )

    async def skip(self, event_id: str, reason: str, *, by: str | None = None) -> None:
        await commands.skip(self.database, event_id, stored_error(reason), by=by)

    async def edit(self, event_id: str, edit: Edit, *, by: str | None = None) -> str:
        return await commands.edit(self.database, event_id, edit, by=by)

    async def forget(
        self,
        ids: Sequence[str],
        about: str,
        *,
        accepted: Sequence[str] = (),
        by: str | None = None,
    ) -> int:
        return await commands.forget(self.database, ids, about, accepted=accepted, by=by)

    async def inboxes(self) -> list[InboxStats]:
        return await lookup.inboxes(self.database)

    async def purge(self, ids: Sequence[str], *, by: str | None = None) -> int:
        return await commands.purge(self.database, ids, by=by)

    async def retry_now(self, ids: Sequence[str], *, by: str | None = None) -> int:
        return await waiting.retry_now(self.database, ids, by=by)

    async def cancel(self, ids: Sequence[str], reason: str = "", *, by: str | None = None) -> int:
        return await waiting.cancel(self.database, ids, stored_error(reason), by=by)

    async def reschedule(self, ids: Sequence[str], at_us: int, *, by: str | None = None) -> int:
        return await waiting.reschedule(self.database, ids, at_us, by=by)

    async def controls(self) -> list[Control]:
        return await controls.controls(self.database)

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
        return await controls.set_control(
            self.database, kind, name, pause=pause, seconds=seconds, reason=reason, by=by
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
        return await controls.set_limits(
            self.database, kind, name, per_second=per_second, in_flight=in_flight, by=by
        )

    async def record_audit(self, entry: AuditEntry) -> None:
        await audit.record_audit(self.database, entry)

    async def audit_log(self, limit: int) -> list[AuditEntry]:
        return await audit.audit_log(self.database, limit)

    # -- operations ---------------------------------------------------------------------------
    async def start_operation(self, new: NewOperation, *, by: str) -> tuple[Operation, bool]:
        return await operations.start_operation(self.database, new, by=by)

    async def operations(self, *, unfinished: bool = False, limit: int = 100) -> list[Operation]:
        return await operations.operations(self.database, unfinished=unfinished, limit=limit)

    async def operation(self, operation_id: str) -> Operation | None:
        return await operations.operation(self.database, operation_id)

    async def take_operation(
        self, operation_id: str, owner: str, lease_seconds: float = LEASE_SECONDS
    ) -> Operation | None:
        return await operations.take_operation(self.database, operation_id, owner, lease_seconds)

    async def advance_operation(self, held: Operation, step: Step) -> tuple[str, ...] | None:
        return await operations.advance_operation(self.database, held, step)

    async def change_operation(self, operation_id: str, change: Change, *, by: str) -> bool:
        return await operations.change_operation(self.database, operation_id, change, by=by)

    async def prune_operations(self, older_than_seconds: float, limit: int) -> int:
        return await prune.prune_operations(self.database, older_than_seconds, limit)

    # -- waking and handlers ------------------------------------------------------------------
    async def wait_for_change(self, timeout_seconds: float) -> bool:
        """Return True when a writer's process has sent a NOTIFY, and after every reconnect.

        Writers send it with a PostgresNotifier; commits of handlers' transactions send it
        automatically. Never raises for an unreachable server.
        """
        _ = self.database  # raises if it is not open
        return await self._listener.wait(timeout_seconds)

    def transaction(self) -> AbstractAsyncContextManager[AsyncConnection[Any]]:
        """Open a transaction for a handler on a psycopg connection; commits on exit.

        Settings changed with SET stay on the connection for the next handler: use SET LOCAL.
        """
        return self._guarded.transaction()

    def sync_transaction(self) -> AbstractContextManager[Connection[Any]]:
        """The same on a sync psycopg connection, for a handler in a thread."""
        return self._guarded.sync_transaction()

    async def forget_accepted(
        self, consumer: str, older_than_seconds: float, kept_by: Sequence[str]
    ) -> int:
        rows = Acceptances.in_transactions(self.transaction, self.tables.qualified)
        return await forget_old(rows, consumer, older_than_seconds, self, kept_by)

    async def check(self) -> list[Finding]:
        from postroom.stores.postgres import checks

        return [*await checks.examine(self), *await checks.examine_rights(self)]

    async def adopt(
        self, table: str, *, on_moved: Callable[[int], object] = lambda _: None, **options: Any
    ) -> Adopted:
        """Move the rows of another program's table into the outbox; options as in Adoption."""
        from postroom.stores.postgres.adopt import adopt

        return await adopt(
            self,
            table,
            connected=lambda: self._connected(migrating=True),
            on_moved=on_moved,
            **options,
        )

    def complaints(self) -> list[tuple[str, str]]:
        return []

    def _added(self) -> None:
        if self.settings.notify:
            self._notifier.notify()

    # -- connections --------------------------------------------------------------------------
    @property
    def url(self) -> str:
        """The URL of this store, without its password."""
        tables = self.tables
        return naming(self.settings.shown, schema=tables.schema, prefix=tables.own_prefix)

    @property
    def database(self) -> Database:
        """The relay's connections."""
        if self._database is None:
            raise StoreError("the store is not open; call `await store.open()` first")
        return self._database

    @property
    def _guarded(self) -> HandlerTransactions:
        if self._handler_transactions is None:
            raise StoreError("the store is not open; call `await store.open()` first")
        return self._handler_transactions

    @asynccontextmanager
    async def _connected(self, *, migrating: bool = False) -> AsyncIterator[AsyncConnection[Any]]:
        """Use a connection outside of the pool, which may not be open yet."""
        try:
            connection = await self._connector.connect(_MIGRATE_SECONDS if migrating else None)
        except psycopg.Error as error:
            raise could_not_connect(error) from error
        try:
            yield connection
        except psycopg.Error as error:
            broken = connection.closed or is_fatal(error)
            raise translate(error, broken=broken) from error
        finally:
            await connection.close()
