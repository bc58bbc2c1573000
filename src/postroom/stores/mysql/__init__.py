"""MySQL and MariaDB. The tests run on MariaDB 10.11; the SQL is common to it and MySQL 8.

store       the port; each method takes a session from the `pool`; `settings` are its options
session     one connection and its transactions, encrypted by `tls`; `errors` translates the
            server's error codes
schema      creates, migrates and checks the tables; `statements` loads `queries/`, `migrations/`
leases      heartbeat, take and release lanes; the fence writes the lease rows
read        what may be sent now, fair over lanes, in one statement; `records` decodes rows
stage       makes due events readable
settle      writes outcomes behind the fence
blocks      lets blocked keys go on, repairs blocks
prune       deletes old done events, stream by stream
lookup      get, find, count; `search`: by index, or within bounds
commands    replay, bury, skip; `waiting`: retry now, cancel, reschedule. `audit` logs these
              commands, `controls` keeps pauses
operations  stored work on many events, in fenced steps
handler_transactions   connections for handlers, one transaction at a time
adopt       moves the rows of an outbox table of another program into postroom's
checks      for `postroom doctor`: durability, character set, packet size, isolation
"""

from postroom.stores.mysql.store import MysqlStore

__all__ = ["MysqlStore"]
