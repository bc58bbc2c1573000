"""Adapters: how `add`, `accept` and a handler's row are written on a connection of the caller.

adapters     finds the adapter for a connection, without importing any driver
statements   what is written; `dialects` and `queries` hold the SQL of each database
steps        one body of code for sync and async drivers
psycopg, asyncpg, mysql, sqlite, sqlalchemy, django, mongo    one module for each driver
conflicts, errors    what an error of a driver means
"""

from postroom.transactions.adapters import (
    open_transaction,
    open_transaction_sync,
    resolve,
    resolve_sync,
    target_of,
)

__all__ = ["open_transaction", "open_transaction_sync", "resolve", "resolve_sync", "target_of"]
