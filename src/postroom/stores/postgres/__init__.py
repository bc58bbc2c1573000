"""PostgreSQL: any number of relays and writers; needs `postroom[postgres]`.

store       the port; `settings` reads its URL
connector   opens connections with time limits; `database` runs named statements on a pool of them
schema      creates, migrates and checks the tables; `statements` loads `queries/`, `migrations/`
leases      heartbeat, take and release lanes
read        what may be sent now; `stage` makes due events readable
settle      writes outcomes (locks the lease rows FOR SHARE: the fence)
blocks      lets blocked keys go on, repairs blocks
prune       deletes old done events
floors      proves below which number a read finds nothing, so that reads skip dead index entries
listener    LISTEN: wakes relays after commits; `notifier` sends NOTIFY from the writer's process
lookup      get, find, count; `search`: by index, or within bounds
commands    replay, bury, skip; `waiting`: retry now, cancel, reschedule. `audit` logs these
              commands, `controls` keeps pauses
operations  stored work on many events, in fenced steps
adopt       moves the rows of another program's outbox table
handler_transactions   connections for handlers, one transaction at a time
errors      what an SQLSTATE means to the port
checks      for `postroom doctor`: durability, rights, sequence, vacuum, long transactions
"""

from postroom.stores.postgres.notifier import PostgresNotifier
from postroom.stores.postgres.store import PostgresStore

__all__ = ["PostgresNotifier", "PostgresStore"]
