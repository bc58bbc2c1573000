"""Checks of a MySQL or MariaDB server for `postroom doctor`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from postroom.errors import StoreError
from postroom.model.clock import host_microseconds
from postroom.model.codec import MAX_PAYLOAD_BYTES
from postroom.model.diagnostics import Finding
from postroom.stores.mysql.session import end

if TYPE_CHECKING:
    from postroom.stores.mysql.session import Session
    from postroom.stores.mysql.store import MysqlStore

_CLOCK_SECONDS = 1.0
_OLD_TRANSACTION_SECONDS = 300
_SMALLEST_PACKET = 2 * MAX_PAYLOAD_BYTES + 100_000
"""Bytes are sent as hexadecimal digits, together with the rest of the event."""
_MOST_NUMBERS = 1 << 61
_GRANT = re.compile(r"GRANT (?P<rights>.+?) ON (?P<on>\S+) TO ", re.DOTALL)
_COLUMNS = re.compile(r"\([^)]*\)")
_HARMLESS = {"USAGE", "PROCESS"}
_NEEDED = {"SELECT", "INSERT", "UPDATE", "DELETE"}

INDEXES = {
    "outbox": {
        "PRIMARY": "seq",
        "outbox_id": "id",
        "outbox_shelf": "shelf,stream,slot,seq,size,key_hash",
        "outbox_due": "due_lane,stream,next_attempt_at,seq",
        "outbox_parked": "parked_key,stream,seq",
        "outbox_open": "open_state,seq,stream",
        "outbox_key": "key,seq",
    },
    "lease": {"PRIMARY": "stream,lane"},
    "member": {"PRIMARY": "stream,owner"},
    "block": {"PRIMARY": "stream,key_hash", "block_lane": "stream,lane"},
    "counter": {"PRIMARY": "topic,key_hash"},
    "inbox": {"PRIMARY": "consumer,id", "inbox_processed": "consumer,state,processed_at"},
    "audit": {"PRIMARY": "n"},
    "control": {"PRIMARY": "kind,name"},
    "operation": {
        "PRIMARY": "id",
        "operation_created": "created_at",
        "operation_unfinished": "fingerprint",
    },
}


async def examine(store: MysqlStore) -> list[Finding]:
    """Return all findings; an empty list if there are none."""
    async with store.session() as session:
        variables = {name.lower(): value for name, value in await session.rows("check_variables")}
        return [
            *check_numbers(variables),
            *check_writable(variables),
            *check_packet(variables),
            *check_durability(variables),
            *check_charset(variables, await _bare_charset(store)),
            *await check_largest(session),
            *await check_isolation(session),
            *await check_indexes(session, store.prefix),
            *await check_clock(session),
            *await check_transactions(session),
        ]


def check_numbers(variables: Mapping[str, str]) -> Iterator[Finding]:
    """Numbers assigned by several primaries are not in the order of writes."""
    step, offset = variables["auto_increment_increment"], variables["auto_increment_offset"]
    if (step, offset) != ("1", "1"):
        yield Finding(
            "error",
            f"auto_increment_increment is {step} and auto_increment_offset {offset}",
            "a cluster with several primaries interleaves the numbers of events: a key whose "
            "events are "
            "written on two primaries is sent out of order (G4), and two relays on different "
            "primaries can own one lane (G5)",
            "let all writers and relays of an outbox use the same primary, or set both to 1",
        )


async def check_largest(session: Session) -> list[Finding]:
    """A row with a number chosen by a writer: no number is left, or it is never read."""
    ((lowest, largest),) = await session.rows("check_numbers")
    found = []
    if largest is not None and largest > _MOST_NUMBERS:
        found.append(
            Finding(
                "error",
                f"an event has the number {largest}",
                "AUTO_INCREMENT did not assign it, a writer did. Every later event gets a higher "
                "number, until none is left (error 167 or 1467 for every writer)",
                "delete the row, ALTER TABLE … AUTO_INCREMENT = the next number, and grant "
                "writers only the columns that `add` fills, not the table",
            )
        )
    if lowest is not None and lowest < 1:
        found.append(
            Finding(
                "error",
                f"an event has the number {lowest}",
                "AUTO_INCREMENT did not assign it, a writer did. It is sent before all others",
                "delete the row, and grant writers only the columns that `add` fills, not "
                "the table",
            )
        )
    return found


def check_writable(variables: Mapping[str, str]) -> Iterator[Finding]:
    """A replica lags behind, and nothing can be settled on it."""
    closed = ("read_only", "super_read_only", "innodb_read_only", "transaction_read_only")
    names = [name for name in closed if variables.get(name) in ("ON", "1")]
    if names:
        yield Finding(
            "error",
            f"the server is read-only ({', '.join(names)})",
            "it is a replica, or being demoted to one: a relay can neither take lanes nor settle",
            "connect to the primary",
        )


def check_packet(variables: Mapping[str, str]) -> Iterator[Finding]:
    """An event that exceeds a packet ends the connection of its writer."""
    limit = int(variables["max_allowed_packet"])
    if limit < _SMALLEST_PACKET:
        yield Finding(
            "warning",
            f"max_allowed_packet is {limit:,} bytes",
            f"an event may have up to {MAX_PAYLOAD_BYTES:,} bytes, and binary payloads take "
            "twice as many in a statement; `add` refuses events that exceed the server's limit",
            "SET GLOBAL max_allowed_packet = 16777216, and in the server's configuration",
        )


async def _bare_charset(store: MysqlStore) -> str:
    """Return the character set that the server uses when a driver only asks for utf8mb4."""
    connection = await store.target.connect(names=False)
    try:
        async with connection.cursor() as cursor:
            await cursor.execute("SELECT @@character_set_client")
            ((charset,),) = await cursor.fetchall()
            return str(charset)
    finally:
        await end(connection)


def check_charset(variables: Mapping[str, str], bare: str) -> Iterator[Finding]:
    """Other character sets than utf8mb4 replace unsupported characters with question marks."""
    names = [f"character_set_{part}" for part in ("client", "connection", "results")]
    lossy = [f"{name} is {variables[name]}" for name in names if variables[name] != "utf8mb4"]
    if lossy:
        yield Finding(
            "error",
            f"the server ignores SET NAMES utf8mb4: {', '.join(lossy)}",
            "ids, keys and headers would contain question marks, and consumers would take "
            "different events for the same one",
            "look for a proxy that sets the character set, and remove it",
        )
    elif bare != "utf8mb4":
        yield Finding(
            "warning",
            f"the server uses {bare} although the driver asks for utf8mb4 when it connects",
            "skip-character-set-client-handshake or init_connect is set: the relay sets utf8mb4 "
            "itself, but writers whose driver does not (asyncmy) are refused",
            "remove both from the server's configuration, or let writers connect with "
            "init_command='SET NAMES utf8mb4'",
        )


def check_durability(variables: Mapping[str, str]) -> Iterator[Finding]:
    """A power failure must not undo commits."""
    flush = variables.get("innodb_flush_log_at_trx_commit", "1")
    if flush not in ("1", "3"):
        yield Finding(
            "warning",
            f"innodb_flush_log_at_trx_commit is {flush}",
            "a power failure may lose the last second: events that were sent are sent again, and "
            "events of transactions that were reported as committed are lost",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        )
    if variables.get("log_bin") == "ON" and variables.get("binlog_format") == "STATEMENT":
        yield Finding(
            "error",
            "binlog_format is STATEMENT",
            "with it the server refuses to change rows under READ COMMITTED, which the relay uses",
            "SET GLOBAL binlog_format = ROW",
        )


async def check_isolation(session: Session) -> list[Finding]:
    """The relay sets its own isolation level; writers and operators use the server's."""
    rows = await session.rows("check_global_isolation")
    default = rows[0][1] if rows else ""
    if default != "SERIALIZABLE":
        return []
    return [
        Finding(
            "warning",
            "the server's default isolation is SERIALIZABLE",
            "every session that reads the outbox locks the rows and delays writers and relays; the "
            "relay's own sessions use READ COMMITTED",
            "SET GLOBAL TRANSACTION ISOLATION LEVEL READ COMMITTED, or set it in those sessions",
        )
    ]


async def check_indexes(session: Session, prefix: str) -> list[Finding]:
    """Without its index a read scans the whole table."""
    tables = tuple(prefix + table for table in INDEXES)
    there = {
        (table, index): columns
        for table, index, columns in await session.rows("check_indexes", tables=tables)
    }
    seen = {table for table, _ in there}  # tables without privileges are not listed
    found: list[Finding] = []
    for table, indexes in INDEXES.items():
        for name, columns in indexes.items() if prefix + table in seen else ():
            index = name if name == "PRIMARY" else prefix + name
            if there.get((prefix + table, index)) != columns:
                found.append(
                    Finding(
                        "error",
                        f"{prefix}{table} has no index {index} ({columns})",
                        "statements that name it fail or scan the whole table",
                        f"ALTER TABLE {prefix}{table} ADD INDEX {index} ({columns})"
                        if name != "PRIMARY"
                        else f"restore {prefix}{table} from `postroom migrate sql`",
                    )
                )
    return found


async def check_clock(session: Session) -> list[Finding]:
    """Only the server's clock decides about leases; events carry the time of their host."""
    before = host_microseconds()
    ((server,),) = await session.rows("check_clock")
    after = host_microseconds()
    apart = max(before - server, server - after, 0) / 1_000_000
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


async def check_transactions(session: Session) -> list[Finding]:
    """An old transaction prevents the server from purging settled rows."""
    try:
        rows = await session.rows("check_transactions")
    except StoreError as error:
        return [
            Finding(
                "info",
                "cannot look for open transactions",
                f"the user lacks the PROCESS privilege: {error}",
                "GRANT PROCESS ON *.* TO … so that doctor can look for them",
            )
        ]
    if not rows or rows[0][1] < _OLD_TRANSACTION_SECONDS:
        return []
    thread, age = rows[0]
    return [
        Finding(
            "warning",
            f"connection {thread} has had a transaction open for {age} s",
            "entries of settled events stay in the index until it ends, and reads become slower",
            f"end it, or: KILL {thread}",
        )
    ]


async def examine_rights(store: MysqlStore) -> list[Finding]:
    """Report if the user has more privileges than a relay needs."""
    async with store.session() as session:
        grants = [grant for (grant,) in await session.rows("check_rights")]
    return list(judge_rights(grants))


def judge_rights(grants: Iterable[str]) -> Iterator[Finding]:
    """Return a user's privileges beyond rows of the tables, from the lines of SHOW GRANTS."""
    everywhere: set[str] = set()
    here: set[str] = set()
    for grant in grants:
        if (found := _GRANT.match(grant)) is not None:  # not a role, not a proxy
            rights = {right.strip() for right in _COLUMNS.sub("", found["rights"]).split(",")}
            (everywhere if found["on"] == "*.*" else here).update(rights)
    fix = "CREATE USER relay, with the grants of `Least privileges` in operations/deploy"
    if more := sorted(everywhere - _HARMLESS):
        yield Finding(
            "warning", f"this user has rights on all databases: {_few(more)}",
            "a mistake or a stolen password then affects more than the events", fix,
        )  # fmt: skip
    elif more := sorted(here - _HARMLESS - _NEEDED):
        yield Finding(
            "info", f"this user has more rights than a relay needs: {_few(more)}",
            "migrations need them; a relay should not be able to drop tables", fix,
        )  # fmt: skip


def _few(words: list[str]) -> str:
    return ", ".join(words[:4]) + (", …" if len(words) > 4 else "")
