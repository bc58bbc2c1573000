"""PostgreSQL: any number of relays and writers; needs `postroom[postgres]`."""

from postroom.stores.postgres.notifier import PostgresNotifier
from postroom.stores.postgres.store import PostgresStore

__all__ = ["PostgresNotifier", "PostgresStore"]
