"""The MySQL and MariaDB store: the Store port over one database of a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from postroom.commands import AuditEntry, Edit
from postroom.errors import StoreError
from postroom.lookup import MAX_CAUSES, Accepted, Details, Filter, InboxStats, Standing, Stats
from postroom.model.controls import Control
from postroom.model.dead_letters import DeadCause
from postroom.model.diagnostics import Finding
from postroom.model.url import Url, naming
from postroom.operation import LEASE_SECONDS, Change, NewOperation, Operation, Step
from postroom.options import MysqlOptions
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
from postroom.stores.mysql import (
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
from postroom.stores.mysql.handler_transactions import HandlerTransactions
from postroom.stores.mysql.pool import Pool
from postroom.stores.mysql.search import Search
from postroom.stores.mysql.session import Session
from postroom.stores.mysql.settings import read_settings
from postroom.stores.mysql.statements import load_migrations, load_queries
from postroom.stores.opening import ContextManager
from postroom.transaction import Proof
from postroom.transactions.acceptances import Acceptances, forget_old

if TYPE_CHECKING:
    import asyncmy

T = TypeVar("T")

_HANDLERS = 32
_MIGRATE_SECONDS = 60
_INDEX_SECONDS = 86_400.0  # as long as the table is large


class MysqlStore(ContextManager):
    """An outbox in a MySQL or MariaDB database, served by relays on any number of hosts.

    Tested on MariaDB 10.11; the SQL is common to it and MySQL 8.0.16. The sessions are the
    store's own: READ COMMITTED, UTC, utf8mb4, whatever the server's defaults are. MySQL has no
    notifications: a relay is woken by kicks in its own process, and polls.

    url       `mysql://user:password@host:3306/database`
    options   those of MysqlSettings, by name or in the URL
    """

    capabilities = Capabilities(
        transactions=True, concurrent_writers=True, server_clock=True, notify=False, adopts=True
    )

    def __init__(self, url: str | Url, **options: Unpack[MysqlOptions]) -> None:
        self.target, self.settings = read_settings(url, options)
        self.prefix = self.settings.prefix
        self.tables = Tables(self.prefix)
        self._pool: Pool | None = None
        self._handler_transactions: HandlerTransactions | None = None
        self._lifecycle_lock = asyncio.Lock()

    # -- life ---------------------------------------------------------------------------------
    async def open(self) -> None:
        async with self._lifecycle_lock:  # relays that start together share one pool
            if self._pool is not None:
                return
            pool = Pool(self._connect, self.settings.pool_size)
            try:
                async with pool.session() as session:
                    await schema.check(session, self.prefix, self.url)
            except BaseException:
                await pool.close()
                raise
            self._pool = pool
            self._handler_transactions = HandlerTransactions(self.target, _HANDLERS)

    async def close(self) -> None:
        self._lifecycle_lock = asyncio.Lock()  # the next life may have another event loop
        pool, self._pool = self._pool, None
        handler_transactions, self._handler_transactions = self._handler_transactions, None
        if pool is not None:
            await pool.close()
        if handler_transactions is not None:
            await handler_transactions.close()

    async def migrate(self) -> int:
        async with self._once() as session:
            return await schema.migrate(session, self.prefix, _MIGRATE_SECONDS)

    async def schema(self) -> Schema:
        async with self._once() as session:
            current = await schema.version(session)
        return Schema(current, load_migrations(self.prefix)[-1].version)

    @property
    def search(self) -> Search:
        return Search(self.prefix, self.session, lambda: self._once(_INDEX_SECONDS))

    def migration_sql(self, after: int = 0, *, transaction: bool = True) -> str:
        return script(Place("mysql", self.prefix), after, transaction=transaction)

    async def identity(self) -> str:
        async with self.session() as session:
            return await lookup.identity(session)

    async def max_packet_bytes(self) -> int:
        """Return the server's maximum statement size: no event can be larger."""
        async with self.session() as session:
            ((limit,),) = await session.query("SELECT @@max_allowed_packet")
        return int(limit)

    # -- lanes --------------------------------------------------------------------------------
    async def heartbeat(
        self, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
    ) -> Membership:
        async with self.session() as session:
            return await leases.heartbeat(session, stream, member, lease_seconds, held)

    async def take(
        self, stream: str, owner: str, lanes: Sequence[int], lease_seconds: float
    ) -> dict[int, int]:
        async with self.session() as session:
            return await leases.take(session, stream, owner, lanes, lease_seconds)

    async def retake(
        self,
        stream: str,
        owner: str,
        held: Mapping[int, int],
        lease_seconds: float,
        doubt_seconds: float = 0.0,
    ) -> dict[int, int]:
        async with self.session() as session:
            return await leases.retake(session, stream, owner, held, lease_seconds, doubt_seconds)

    async def release(self, stream: str, owner: str, held: Mapping[int, int]) -> None:
        async with self.session() as session:
            await leases.release(session, stream, owner, held)

    async def leave(self, stream: str, owner: str) -> None:
        async with self.session() as session:
            await leases.leave(session, stream, owner)

    async def leases(self, stream: str) -> Membership:
        async with self.session() as session:
            return await leases.leases(session, stream)

    # -- events -------------------------------------------------------------------------------
    async def read(self, request: ReadRequest) -> list[Record]:
        async with self.session() as session:
            return await read.read(session, request)

    async def settle(self, settlement: Settlement) -> set[int]:
        async with self.session() as session:
            return await settle.settle(session, settlement)

    async def stage(self, stream: str, lanes: Sequence[int], limit: int) -> Staged:
        async with self.session() as session:
            return await stage.stage(session, stream, lanes, limit)

    async def repair_blocks(
        self, stream: str, owner: str, leases: Mapping[int, int], limit: int
    ) -> int:
        async with self.session() as session:
            return await blocks.repair_blocks(session, stream, owner, leases, limit)

    async def prune(self, older_than_seconds: float, limit: int) -> int:
        async with self.session() as session:
            return await prune.prune(session, older_than_seconds, limit)

    async def prune_dead(
        self, stream: str, older_than_seconds: float, after_seq: int, limit: int
    ) -> PrunedDead:
        async with self.session() as session:
            return await prune.prune_dead(session, stream, older_than_seconds, after_seq, limit)

    # -- operators ----------------------------------------------------------------------------
    async def get(self, event_id: str) -> Record | None:
        async with self.session() as session:
            return await lookup.get(session, event_id)

    async def holds(self, proofs: Sequence[Proof]) -> set[int]:
        async with self.session() as session:
            return await settle.holds(session, proofs)

    async def look_up(self, ids: Sequence[str]) -> dict[str, Standing]:
        async with self.session() as session:
            return await lookup.look_up(session, ids)

    async def open_keys(self, stream: str, limit: int) -> list[bytes]:
        async with self.session() as session:
            return await lookup.open_keys(session, stream, limit)

    async def find(self, wanted: Filter) -> list[Record]:
        async with self.session() as session:
            return await lookup.find(session, self.prefix, wanted)

    async def stats(self, stream: str | None = None) -> Stats:
        async with self.session() as session:
            return await lookup.stats(session, stream)

    async def streams(self) -> list[str]:
        async with self.session() as session:
            return await lookup.streams(session)

    async def details(self, event_id: str) -> Details | None:
        async with self.session() as session:
            return await lookup.details(session, event_id)

    async def acceptances(self, ids: Sequence[str]) -> list[Accepted]:
        async with self.session() as session:
            return await lookup.acceptances(session, ids)

    async def dead_causes(
        self, stream: str | None = None, limit: int = MAX_CAUSES
    ) -> list[DeadCause]:
        async with self.session() as session:
            return await lookup.dead_causes(session, stream, limit)

    async def replay(
        self, ids: Sequence[str], *, new_id: bool = False, by: str | None = None
    ) -> int:
        async with self.session() as session:
            return await commands.replay(session, ids, new_id=new_id, by=by)

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
        async with self.session() as session:
            return await commands.bury(
                session,
                ids,
                stored_error(reason),
                by=by,
                history=history,
                attempts=attempts,
                whole=whole,
            )

    async def skip(self, event_id: str, reason: str, *, by: str | None = None) -> None:
        async with self.session() as session:
            await commands.skip(session, event_id, stored_error(reason), by=by)

    async def edit(self, event_id: str, edit: Edit, *, by: str | None = None) -> str:
        async with self.session() as session:
            return await commands.edit(session, event_id, edit, by=by)

    async def forget(
        self,
        ids: Sequence[str],
        about: str,
        *,
        accepted: Sequence[str] = (),
        by: str | None = None,
    ) -> int:
        async with self.session() as session:
            return await commands.forget(session, ids, about, accepted=accepted, by=by)

    async def inboxes(self) -> list[InboxStats]:
        async with self.session() as session:
            return await lookup.inboxes(session)

    async def purge(self, ids: Sequence[str], *, by: str | None = None) -> int:
        async with self.session() as session:
            return await commands.purge(session, ids, by=by)

    async def retry_now(self, ids: Sequence[str], *, by: str | None = None) -> int:
        async with self.session() as session:
            return await waiting.retry_now(session, ids, by=by)

    async def cancel(self, ids: Sequence[str], reason: str = "", *, by: str | None = None) -> int:
        async with self.session() as session:
            return await waiting.cancel(session, ids, stored_error(reason), by=by)

    async def reschedule(self, ids: Sequence[str], at_us: int, *, by: str | None = None) -> int:
        async with self.session() as session:
            return await waiting.reschedule(session, ids, at_us, by=by)

    async def controls(self) -> list[Control]:
        async with self.session() as session:
            return await controls.controls(session)

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
        async with self.session() as session:
            return await controls.set_control(
                session, kind, name, pause=pause, seconds=seconds, reason=reason, by=by
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
        async with self.session() as session:
            return await controls.set_limits(
                session, kind, name, per_second=per_second, in_flight=in_flight, by=by
            )

    async def record_audit(self, entry: AuditEntry) -> None:
        async with self.session() as session:
            await audit.record_audit(session, entry)

    async def audit_log(self, limit: int) -> list[AuditEntry]:
        async with self.session() as session:
            return await audit.audit_log(session, limit)

    # -- operations ---------------------------------------------------------------------------
    async def start_operation(self, new: NewOperation, *, by: str) -> tuple[Operation, bool]:
        async with self.session() as session:
            return await operations.start_operation(session, new, by=by)

    async def operations(self, *, unfinished: bool = False, limit: int = 100) -> list[Operation]:
        async with self.session() as session:
            return await operations.operations(session, unfinished=unfinished, limit=limit)

    async def operation(self, operation_id: str) -> Operation | None:
        async with self.session() as session:
            return await operations.operation(session, operation_id)

    async def take_operation(
        self, operation_id: str, owner: str, lease_seconds: float = LEASE_SECONDS
    ) -> Operation | None:
        async with self.session() as session:
            return await operations.take_operation(session, operation_id, owner, lease_seconds)

    async def advance_operation(self, held: Operation, step: Step) -> tuple[str, ...] | None:
        async with self.session() as session:
            return await operations.advance_operation(session, held, step)

    async def change_operation(self, operation_id: str, change: Change, *, by: str) -> bool:
        async with self.session() as session:
            return await operations.change_operation(session, operation_id, change, by=by)

    async def prune_operations(self, older_than_seconds: float, limit: int) -> int:
        async with self.session() as session:
            return await prune.prune_operations(session, older_than_seconds, limit)

    # -- waking and handlers ------------------------------------------------------------------
    async def wait_for_change(self, timeout_seconds: float) -> bool:
        """MySQL does not notify of commits: the time passes, and the relay polls."""
        await asyncio.sleep(timeout_seconds)
        return False

    def transaction(self) -> AbstractAsyncContextManager[asyncmy.Connection]:
        """Open a transaction for a handler on an asyncmy connection; commits on exit.

        A deadlock or a lock timeout is raised as StoreRetryableError: nothing has happened, and the
        whole handler may run again. If the connection is lost during the COMMIT, the outcome is
        unknown: StoreUnknownError.
        """
        return _opened(self._handler_transactions).transaction()

    def sync_transaction(self) -> AbstractContextManager[Any]:
        """The same on a PyMySQL connection, for a handler in a thread."""
        return _opened(self._handler_transactions).sync_transaction()

    async def forget_accepted(
        self, consumer: str, older_than_seconds: float, kept_by: Sequence[str]
    ) -> int:
        rows = Acceptances.in_transactions(self.transaction, self.tables.qualified)
        return await forget_old(rows, consumer, older_than_seconds, self, kept_by)

    async def check(self) -> list[Finding]:
        from postroom.stores.mysql import checks

        return [*await checks.examine(self), *await checks.examine_rights(self)]

    async def adopt(
        self, table: str, *, on_moved: Callable[[int], object] = lambda _: None, **options: Any
    ) -> Adopted:
        """Move the rows of another program's table into the outbox; options as in Adoption."""
        from postroom.stores.mysql.adopt import adopt

        return await adopt(self, table, on_moved=on_moved, **options)

    def complaints(self) -> list[tuple[str, str]]:
        return []

    # -- connections --------------------------------------------------------------------------
    @property
    def url(self) -> str:
        """The URL of this store, without its password, with the prefix as the only option."""
        user = f"{self.target.user}@" if self.target.user else ""
        where = f"mysql://{user}{self.target.host}:{self.target.port}/{self.target.database}"
        return naming(where, prefix=self.tables.own_prefix)

    async def _connect(self, seconds: float | None = None) -> Session:
        limit = self.target.statement_seconds if seconds is None else seconds
        target = replace(self.target, statement_seconds=limit)
        return await Session.open(target, load_queries(self.prefix))

    def session(self) -> AbstractAsyncContextManager[Session]:
        """Use one of the store's own sessions, for checks and for adopting a table."""
        return _opened(self._pool).session()

    @asynccontextmanager
    async def _once(self, seconds: float | None = None) -> AsyncIterator[Session]:
        """Open a session for one piece of work, even if the tables do not exist.

        `seconds` replaces the time limit of a statement.
        """
        session = await self._connect(seconds)
        try:
            yield session
        finally:
            await session.close()


def _opened(part: T | None) -> T:
    if part is None:
        raise StoreError("the store is not open; call `await store.open()` first")
    return part
