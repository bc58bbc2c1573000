"""Checks of a PostgreSQL server for `postroom doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.model.clock import host_microseconds
from postroom.model.diagnostics import Finding

if TYPE_CHECKING:
    from postroom.stores.postgres.database import Database
    from postroom.stores.postgres.store import PostgresStore

_CLOCK_SECONDS = 1.0
_OLD_TRANSACTION_SECONDS = 300
_INDEXES = ("pkey", "id_key", "ready", "waiting", "parked", "done", "other", "key")


class _Server(NamedTuple):
    replica: bool
    read_only: bool
    isolation: str
    synchronous_commit: str
    fsync: bool
    autovacuum: bool
    clock_us: int


async def examine(store: PostgresStore) -> list[Finding]:
    """Return all findings; an empty list if there are none."""
    db = store.database
    before = host_microseconds()
    ((*facts,),) = await db.rows("check_server")
    after = host_microseconds()
    server = _Server(*facts)
    return [
        *check_writable(server),
        *check_durability(server),
        *check_isolation(server),
        *check_clock(server, before, after),
        *await check_sequence(db),
        *await check_indexes(db, store.settings.prefix),
        *await check_vacuum(db, server),
        *await check_transactions(db),
        *await check_slots(db),
    ]


def check_writable(server: _Server) -> list[Finding]:
    """A replica lags behind, and nothing can be settled on it."""
    if not (server.replica or server.read_only):
        return []
    what = "the server is a read replica" if server.replica else "transactions are read-only here"
    return [
        Finding(
            "error",
            what,
            "a relay can neither take lanes nor settle there, and a replica lags behind",
            "connect to the primary, for example with several hosts and "
            "target_session_attrs=read-write; check default_transaction_read_only",
        )
    ]


def check_durability(server: _Server) -> list[Finding]:
    """A crash must not undo commits."""
    found = []
    if not server.fsync:
        found.append(
            Finding(
                "error",
                "fsync is off",
                "a power failure may destroy the database, including the outbox",
                "ALTER SYSTEM SET fsync = on",
            )
        )
    if server.synchronous_commit == "off":
        found.append(
            Finding(
                "warning",
                "synchronous_commit is off",
                "a crash may lose the last transactions: events that were sent are sent again, "
                "and a consumer's effects may be undone after its message was acknowledged",
                "ALTER ROLE … SET synchronous_commit = on, for the roles of relay and consumers",
            )
        )
    return found


def check_isolation(server: _Server) -> list[Finding]:
    """The relay's own transactions are READ COMMITTED; a pooler may not pass that on."""
    if server.isolation == "read committed":
        return []
    return [
        Finding(
            "warning",
            f"the default isolation level is {server.isolation}",
            "the relay asks for READ COMMITTED, but behind a pooler its single statements use "
            "the default: settles that meet a renewal fail and are repeated",
            "ALTER ROLE … SET default_transaction_isolation = 'read committed', for the relay",
        )
    ]


def check_clock(server: _Server, before: int, after: int) -> list[Finding]:
    """Only the server's clock decides about leases; events carry the time of their host."""
    apart = max(before - server.clock_us, server.clock_us - after, 0) / 1_000_000
    if apart < _CLOCK_SECONDS:
        return []
    return [
        Finding(
            "warning",
            f"the clocks of this host and the database differ by {apart:.1f} s",
            "leases are safe, because the database's clock decides; but occurred_at and "
            "available_at come from hosts, so events look older or newer than they are",
            "run NTP on both",
        )
    ]


async def check_sequence(db: Database) -> list[Finding]:
    """Numbers must be assigned one by one, in the order of requests."""
    ((cache, step, last, highest),) = await db.rows("check_sequence")
    found = []
    if highest is not None and last is not None and last < highest:
        found.append(
            Finding(
                "error",
                f"the outbox's sequence is at {last}, behind its highest event, {highest}",
                "add() gets numbers that are already taken, and fails. This happens after a "
                "data-only restore, the promotion of a logical replica, or setval",
                "SELECT setval(pg_get_serial_sequence('postroom_outbox', 'seq'), "
                "(SELECT max(seq) FROM postroom_outbox))",
            )
        )
    if cache > 1:
        found.append(
            Finding(
                "error",
                f"the outbox's sequence has CACHE {cache}",
                "each connection takes numbers in advance, so an event that is written later may "
                "have a lower number, and a key is sent out of order (G4)",
                "ALTER TABLE … ALTER COLUMN seq SET CACHE 1, and let all writers reconnect",
            )
        )
    if step != 1:
        found.append(
            Finding(
                "error",
                f"the outbox's sequence has INCREMENT {step}",
                "several primaries that interleave numbers do not keep the order of writes (G4), "
                "and two relays on different primaries can own one lane (G5)",
                "let all writers and relays of an outbox use the same primary",
            )
        )
    return found


async def check_indexes(db: Database, prefix: str) -> list[Finding]:
    """Without its index a read scans the whole table."""
    there = {name for (name,) in await db.rows("check_indexes")}
    missing = [
        f"{prefix}outbox_{name}" for name in _INDEXES if f"{prefix}outbox_{name}" not in there
    ]
    return [
        Finding(
            "error",
            f"the index {name} is missing or invalid",
            "reads, settles or searches scan the whole table, slower with every event",
            f"DROP INDEX IF EXISTS {name}; then its line of `postroom migrate sql --from 0`, "
            "with CREATE INDEX CONCURRENTLY",
        )
        for name in missing
    ]


async def check_vacuum(db: Database, server: _Server) -> list[Finding]:
    """Every event leaves dead rows behind, which vacuum must remove."""
    ((off,),) = await db.rows("check_vacuum")
    if server.autovacuum and not off:
        return []
    where = "for the outbox table" if server.autovacuum else "on this server"
    return [
        Finding(
            "error",
            f"autovacuum is off {where}",
            "settled events stay in the table and in the index that reads scan, and the database "
            "eventually stops to prevent transaction id wraparound",
            "ALTER TABLE … RESET (autovacuum_enabled), ALTER SYSTEM SET autovacuum = on",
        )
    ]


async def check_transactions(db: Database) -> list[Finding]:
    """An old transaction anywhere in the database keeps dead rows from being removed."""
    rows: list[Any] = await db.rows("check_transactions")
    if not rows or rows[0][3] < _OLD_TRANSACTION_SECONDS:
        return []
    pid, user, application, age = rows[0]
    return [
        Finding(
            "warning",
            f"process {pid} ({user}, {application or 'no application_name'}) has had a "
            f"transaction open for {age:.0f} s",
            "vacuum cannot remove events settled since then: the table grows, and reads "
            "become slower",
            f"end it, or SELECT pg_terminate_backend({pid}); set "
            "idle_in_transaction_session_timeout for its role",
        )
    ]


async def check_slots(db: Database) -> list[Finding]:
    """So does an abandoned replication slot, or a prepared transaction that was never finished."""
    return [
        Finding(
            "warning",
            f"the {kind} {name!r} holds vacuum back ({age:,} transactions old)",
            "vacuum cannot remove events settled since then, even if all connections are closed",
            "SELECT pg_drop_replication_slot(…), if no consumer needs it"
            if kind == "replication slot"
            else f"COMMIT PREPARED or ROLLBACK PREPARED '{name}'",
        )
        for kind, name, age in await db.rows("check_slots")
    ]


async def examine_rights(store: PostgresStore) -> list[Finding]:
    """Report if the role has more privileges than a relay needs, or PUBLIC has any."""
    rows: list[Any] = await store.database.rows("check_rights")
    return [finding for row in rows for finding in judge_rights(*row)]


def judge_rights(
    role: str, superuser: bool, may_administer: bool, owner: bool, everybody: str
) -> Iterator[Finding]:
    """Return a role's privileges beyond those of a relay."""
    why = "a mistake or a stolen password then affects more than the events"
    fix = "CREATE ROLE relay LOGIN, with the grants of `Least privileges` in operations/deploy"
    if superuser:
        yield Finding("info", f"{role} is a superuser; a relay only needs access to rows", why, fix)
    elif may_administer:
        what = f"{role} may create roles or databases, or bypass row security"
        yield Finding("warning", what, why, fix)
    elif owner:
        yield Finding(
            "info", f"{role} owns the tables: migrations need that, a relay does not",
            "it can drop them", fix,
        )  # fmt: skip
    if everybody:
        yield Finding(
            "warning", f"PUBLIC has {everybody} on the outbox table",
            "any role can change, delete or forge events, or read their payloads",
            "REVOKE ALL ON TABLE … FROM PUBLIC",
        )  # fmt: skip
