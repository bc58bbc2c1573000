"""Adapters: write `add`, `accept` and the checks of handlers on the caller's own connection.

A call passes the modules in this order:

inserts      how an outbox writes rows that may exist, and numbers those of strict order
waiting      cancels and reschedules events
adapters     finds the adapter for a connection by its class, without importing any driver
psycopg, asyncpg, mysql, sqlite, sqlalchemy, django, mongo    the adapters, one for each driver
driver       what an adapter can do: run one statement, and tell whether it would autocommit
statements   the port `postroom.transaction` over any SQL driver
dialects     which statements each database needs; `dialect_mysql` for MySQL and MariaDB
queries      loads the SQL of `queries/` and puts it into the driver's parameter style
acceptances  reads and prunes inbox rows, in separate transactions
steps        runs one body of code for sync and async drivers
errors       what an error of a driver means; `conflicts` recognizes those worth a retry
client_encoding   refuses a PostgreSQL connection whose encoding would change the text
"""

from postroom.transactions.adapters import resolve, resolve_sync

__all__ = ["resolve", "resolve_sync"]
