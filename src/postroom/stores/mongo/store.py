"""The MongoDB store: the Store port over a replica set, or a standalone server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, Unpack

from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from postroom.commands import AuditEntry, Edit
from postroom.errors import ConfigError, StoreError, TransactionError
from postroom.lookup import MAX_CAUSES, Accepted, Details, Filter, InboxStats, Standing, Stats
from postroom.model.controls import Control
from postroom.model.dead_letters import DeadCause
from postroom.model.diagnostics import Finding
from postroom.model.url import Url, naming
from postroom.operation import LEASE_SECONDS, Change, NewOperation, Operation, Step
from postroom.options import MongoOptions
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
from postroom.stores.mongo import (
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
from postroom.stores.mongo.change_stream import ChangeStream
from postroom.stores.mongo.collector import Collector, check_indexes
from postroom.stores.mongo.connection import Connection, faithful
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.handler_transactions import SyncHandlerTransactions, handler_transaction
from postroom.stores.mongo.search import Search
from postroom.stores.mongo.settings import read_settings
from postroom.stores.mongo.uncollected import with_embedded
from postroom.stores.opening import ContextManager
from postroom.transaction import Proof
from postroom.transactions.acceptances import Acceptances, forget_old

REPLICA_SET = Capabilities()
STANDALONE = Capabilities(transactions=False, notify=False)


class MongoStore(ContextManager):
    """An outbox in a MongoDB database.

    url       `mongodb://host:port,host:port/database?replicaSet=…`; its other options are the
              driver's
    options   those of MongoSettings, by name or in the URL

    Without transactions every change compares before it sets, but G5 does not
    hold: between the check of a lease and the change another relay may take the lane.
    """

    def __init__(self, url: str | Url, **options: Unpack[MongoOptions]) -> None:
        self._address, self.settings = read_settings(url, options)
        self.prefix = self.settings.prefix
        self.tables = Tables(self.prefix)
        self.embedded = self.settings.embedded
        self._wanted = self.settings.transactions
        self._collector: Collector | None = None
        self._db: Connection | None = None
        self._change_stream: ChangeStream | None = None
        self._sync = SyncHandlerTransactions(
            self._address.target, self._address.options, self._address.database
        )

    @property
    def capabilities(self) -> Capabilities:
        """The server's capabilities; before `open` those of a replica set."""
        known = self._wanted if self._db is None else self._db.transactions
        return STANDALONE if known is False else REPLICA_SET

    @property
    def database(self) -> str:
        return self._address.database

    # -- life ---------------------------------------------------------------------------------
    @faithful
    async def open(self) -> None:
        if self._db is not None:
            return
        db = self._connect()
        try:
            with translated(harmless=True):
                await self._learn(db)
                await schema.check(db, self.url)
                await check_indexes(db, self.embedded, self.url)
        except BaseException:
            await db.close()
            raise
        self._db, self._change_stream = db, ChangeStream(db)
        self._collector = Collector(db, self.embedded) if self.embedded else None

    async def close(self) -> None:
        db, change_stream = self._db, self._change_stream
        self._db = self._change_stream = self._collector = None
        if change_stream is not None:
            await change_stream.close()
        if db is not None:
            await db.close()
        await asyncio.to_thread(self._sync.close)

    @faithful
    async def migrate(self) -> int:
        db = self._connect()
        try:
            return await schema.migrate(db, self.embedded)
        finally:
            await db.close()

    @faithful
    async def schema(self) -> Schema:
        db = self._connect()
        try:
            with translated(harmless=True):
                current = await schema.version(db)
        finally:
            await db.close()
        return Schema(current, schema.load_migrations(self.prefix)[-1].version)

    @property
    def search(self) -> Search:
        return Search(lambda: self._opened, self._once, lookup.where)

    @asynccontextmanager
    async def _once(self) -> AsyncIterator[Connection]:
        db = self._connect()
        try:
            yield db
        finally:
            await db.close()

    def migration_sql(self, after: int = 0, *, transaction: bool = True) -> str:  # noqa: ARG002
        """Return the commands that `migrate` would run, as text for mongosh."""
        return schema.script_after(self.prefix, after, self.embedded)

    @faithful
    async def identity(self) -> str:
        with translated(harmless=True):
            return await schema.identity(self._opened)

    # -- lanes --------------------------------------------------------------------------------
    @faithful
    async def heartbeat(
        self, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
    ) -> Membership:
        membership = await leases.heartbeat(self._opened, stream, member, lease_seconds, held)
        if self._change_stream is not None:
            self._change_stream.holds(stream, member.owner, held)
        return membership

    @faithful
    async def take(
        self, stream: str, owner: str, lanes: Sequence[int], lease_seconds: float
    ) -> dict[int, int]:
        taken = await leases.take(self._opened, stream, owner, lanes, lease_seconds)
        if self._change_stream is not None:
            self._change_stream.took(stream, owner, taken)
        return taken

    @faithful
    async def retake(
        self,
        stream: str,
        owner: str,
        held: Mapping[int, int],
        lease_seconds: float,
        doubt_seconds: float = 0.0,
    ) -> dict[int, int]:
        return await leases.retake(self._opened, stream, owner, held, lease_seconds, doubt_seconds)

    @faithful
    async def release(self, stream: str, owner: str, held: Mapping[int, int]) -> None:
        await leases.release(self._opened, stream, owner, held)

    @faithful
    async def leave(self, stream: str, owner: str) -> None:
        await leases.leave(self._opened, stream, owner)
        if self._change_stream is not None:
            self._change_stream.holds(stream, owner, ())

    @faithful
    async def leases(self, stream: str) -> Membership:
        return await leases.leases(self._opened, stream)

    # -- events -------------------------------------------------------------------------------
    @faithful
    async def read(self, request: ReadRequest) -> list[Record]:
        found = await read.read(self._opened, request)
        if found and self._change_stream is not None:
            self._change_stream.found_work()
        return found

    @faithful
    async def settle(self, settlement: Settlement) -> set[int]:
        return await settle.settle(self._opened, settlement)

    @faithful
    async def stage(self, stream: str, lanes: Sequence[int], limit: int) -> Staged:
        more = False
        if self._collector is not None and lanes:
            _, more = await self._collector.collect()
        staged = await stage.stage(self._opened, stream, lanes, limit)
        return staged._replace(moved=limit) if more else staged  # look again at once

    def complaints(self) -> list[tuple[str, str]]:
        """Return reports since the last call: what each is about, and the error."""
        return [] if self._collector is None else self._collector.complaints()

    @faithful
    async def repair_blocks(
        self, stream: str, owner: str, leases: Mapping[int, int], limit: int
    ) -> int:
        return await blocks.repair_blocks(self._opened, stream, owner, leases, limit)

    @faithful
    async def prune(self, older_than_seconds: float, limit: int) -> int:
        streams = await lookup.streams(self._opened)
        return await prune.prune(self._opened, streams, older_than_seconds, limit)

    @faithful
    async def prune_dead(
        self, stream: str, older_than_seconds: float, after_seq: int, limit: int
    ) -> PrunedDead:
        return await prune.prune_dead(self._opened, stream, older_than_seconds, after_seq, limit)

    # -- operators ----------------------------------------------------------------------------
    @faithful
    async def get(self, event_id: str) -> Record | None:
        return await lookup.get(self._opened, event_id)

    @faithful
    async def holds(self, proofs: Sequence[Proof]) -> set[int]:
        with translated(harmless=True):
            return await settle.holds(self._opened, None, proofs)

    @faithful
    async def look_up(self, ids: Sequence[str]) -> dict[str, Standing]:
        return await lookup.look_up(self._opened, ids)

    @faithful
    async def open_keys(self, stream: str, limit: int) -> list[bytes]:
        return await lookup.open_keys(self._opened, stream, limit)

    @faithful
    async def find(self, wanted: Filter) -> list[Record]:
        return await lookup.find(self._opened, wanted)

    @faithful
    async def stats(self, stream: str | None = None) -> Stats:
        stats = await lookup.stats(self._opened, stream)
        return await with_embedded(self._opened, self.embedded, stats, stream)

    @faithful
    async def streams(self) -> list[str]:
        return await lookup.streams(self._opened)

    @faithful
    async def details(self, event_id: str) -> Details | None:
        return await lookup.details(self._opened, event_id)

    @faithful
    async def acceptances(self, ids: Sequence[str]) -> list[Accepted]:
        return await lookup.acceptances(self._opened, ids)

    @faithful
    async def dead_causes(
        self, stream: str | None = None, limit: int = MAX_CAUSES
    ) -> list[DeadCause]:
        of = await lookup.streams(self._opened) if stream is None else [stream]
        return await lookup.dead_causes(self._opened, of, limit)

    @faithful
    async def replay(
        self, ids: Sequence[str], *, new_id: bool = False, by: str | None = None
    ) -> int:
        return await commands.replay(self._opened, ids, new_id=new_id, by=by)

    @faithful
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
            self._opened,
            ids,
            stored_error(reason),
            by=by,
            history=history,
            attempts=attempts,
            whole=whole,
        )

    @faithful
    async def skip(self, event_id: str, reason: str, *, by: str | None = None) -> None:
        await commands.skip(self._opened, event_id, stored_error(reason), by=by)

    @faithful
    async def edit(self, event_id: str, edit: Edit, *, by: str | None = None) -> str:
        return await commands.edit(self._opened, event_id, edit, by=by)

    @faithful
    async def forget(
        self,
        ids: Sequence[str],
        about: str,
        *,
        accepted: Sequence[str] = (),
        by: str | None = None,
    ) -> int:
        return await commands.forget(self._opened, ids, about, accepted=accepted, by=by)

    @faithful
    async def inboxes(self) -> list[InboxStats]:
        return await lookup.inboxes(self._opened)

    @faithful
    async def purge(self, ids: Sequence[str], *, by: str | None = None) -> int:
        return await commands.purge(self._opened, ids, by=by)

    @faithful
    async def retry_now(self, ids: Sequence[str], *, by: str | None = None) -> int:
        return await waiting.retry_now(self._opened, ids, by=by)

    @faithful
    async def cancel(self, ids: Sequence[str], reason: str = "", *, by: str | None = None) -> int:
        return await waiting.cancel(self._opened, ids, stored_error(reason), by=by)

    @faithful
    async def reschedule(self, ids: Sequence[str], at_us: int, *, by: str | None = None) -> int:
        return await waiting.reschedule(self._opened, ids, at_us, by=by)

    @faithful
    async def controls(self) -> list[Control]:
        return await controls.controls(self._opened)

    @faithful
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
            self._opened, kind, name, pause=pause, seconds=seconds, reason=reason, by=by
        )

    @faithful
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
            self._opened, kind, name, per_second=per_second, in_flight=in_flight, by=by
        )

    @faithful
    async def record_audit(self, entry: AuditEntry) -> None:
        with translated(harmless=False):
            await audit.record_audit(self._opened, None, entry)

    @faithful
    async def audit_log(self, limit: int) -> list[AuditEntry]:
        return await audit.audit_log(self._opened, limit)

    # -- operations ---------------------------------------------------------------------------
    @faithful
    async def start_operation(self, new: NewOperation, *, by: str) -> tuple[Operation, bool]:
        return await operations.start_operation(self._opened, new, by=by)

    @faithful
    async def operations(self, *, unfinished: bool = False, limit: int = 100) -> list[Operation]:
        return await operations.operations(self._opened, unfinished=unfinished, limit=limit)

    @faithful
    async def operation(self, operation_id: str) -> Operation | None:
        return await operations.operation(self._opened, operation_id)

    @faithful
    async def take_operation(
        self, operation_id: str, owner: str, lease_seconds: float = LEASE_SECONDS
    ) -> Operation | None:
        return await operations.take_operation(self._opened, operation_id, owner, lease_seconds)

    @faithful
    async def advance_operation(self, held: Operation, step: Step) -> tuple[str, ...] | None:
        return await operations.advance_operation(self._opened, held, step)

    @faithful
    async def change_operation(self, operation_id: str, change: Change, *, by: str) -> bool:
        return await operations.change_operation(self._opened, operation_id, change, by=by)

    @faithful
    async def prune_operations(self, older_than_seconds: float, limit: int) -> int:
        return await prune.prune_operations(self._opened, older_than_seconds, limit)

    # -- waking and handlers ------------------------------------------------------------------
    @faithful
    async def wait_for_change(self, timeout_seconds: float) -> bool:
        """Return True once an event may have been committed, by any process.

        The second of two calls notices a commit between them. Without change streams it waits.
        """
        db = self._opened
        if self._change_stream is None or not db.transactions:
            await asyncio.sleep(timeout_seconds)
            return False
        return await self._change_stream.wait(timeout_seconds)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction for a handler on an AsyncClientSession; commits on exit.

        Without transactions it yields an object with the `database`, which `add` and `accept` take
        too; their writes are deferred until the handler has succeeded.
        """
        return handler_transaction(self._opened)

    def sync_transaction(self) -> AbstractContextManager[Any]:
        """Open a transaction on a ClientSession, for a handler in a thread."""
        if not self._opened.transactions:
            raise TransactionError(
                "this MongoDB has no transactions for handlers in threads: use async handlers, or "
                "Handlers(sync_transaction=False) with idempotent effects"
            )
        return self._sync.transaction()

    async def forget_accepted(
        self, consumer: str, older_than_seconds: float, kept_by: Sequence[str]
    ) -> int:
        rows = Acceptances.in_transactions(self.transaction, self.tables.qualified)
        return await forget_old(rows, consumer, older_than_seconds, self, kept_by)

    async def check(self) -> list[Finding]:
        from postroom.stores.mongo import checks

        return [*await checks.examine(self), *await checks.examine_rights(self)]

    # -- connections --------------------------------------------------------------------------
    @property
    def url(self) -> str:
        """The URL of this store, without secrets."""
        return naming(str(Url.parse(self._address.target)), prefix=self.tables.own_prefix)

    @property
    def connection(self) -> Connection:
        """The open connection, for other parts of postroom that use this database."""
        return self._opened

    @property
    def _opened(self) -> Connection:
        if self._db is None:
            raise StoreError("the store is not open; call `await store.open()` first")
        return self._db

    def _connect(self) -> Connection:
        try:
            client = AsyncMongoClient[Any](self._address.target, **self._address.options)
        except (PyMongoError, ValueError, TypeError) as error:
            raise ConfigError(f"MongoDB URL: {error}") from error
        return Connection(
            client, self._address.database, self.prefix, transactions=self._wanted is not False
        )

    async def _learn(self, db: Connection) -> None:
        can = await db.can_transact()
        if self._wanted and not can:
            raise ConfigError(
                "this MongoDB is a standalone server, which has no transactions. Make it a replica "
                "set (a single member is enough), or leave `transactions` out"
            )
        db.transactions = can and self._wanted is not False
        db.clustered = can
