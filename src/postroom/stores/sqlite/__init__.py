"""SQLite: one file, several processes, nothing to install.

store         the port; each method runs one function of the modules below in a database thread.
              `settings` are its options
thread        a connection and the only thread that uses it; `errors` translates its errors
schema        creates, migrates and checks the tables
leases        heartbeat, take and release lanes
read          what may be sent now; `stage` makes due events readable
settle        writes outcomes (under BEGIN IMMEDIATE: the file's write lock is the fence)
blocks        lets blocked keys go on, repairs blocks
prune         deletes old done events
lookup        get, find, count; `search`: by index, or within bounds
commands      replay, bury, skip; `waiting`: retry now, cancel, reschedule. `audit` logs these
              commands, `controls` keeps pauses
operations    stored work on many events, in fenced steps
handler_transactions   connections for handlers, one transaction at a time
statements    loads `queries/` and `migrations/`
checks        for `postroom doctor`: journal mode, indexes, size of the WAL
"""

from postroom.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
