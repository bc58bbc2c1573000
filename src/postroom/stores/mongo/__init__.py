"""MongoDB as a store: replica sets and, with fewer promises, standalone servers.

store           the port; `settings` reads its URL, `connection` holds client and transactions
schema          creates, migrates and checks the collections; `records` reads events from them
collector       moves events that `embedded` wrote into the caller's documents to the outbox.
                `postponed` skips documents that fail for a while, `uncollected` counts what waits
leases          heartbeat, take and release lanes; the fence writes the lease documents
read            what may be sent now; `read_past_keys` skips keys in flight with deep backlogs
stage           makes due events readable; `work_index` is how it and `read` walk the index
settle          writes outcomes behind the fence
blocks          decides what becomes of blocked keys, repairs blocks
prune           deletes old done events
change_stream   wakes relays after commits
lookup          get, find, count; `search`: by index, or within bounds
commands        replay, bury, skip; `waiting`: retry now, cancel, reschedule. `audit` logs these
                commands, `controls` keeps pauses
operations      stored work on many events, in fenced steps
handler_transactions   sessions for handlers; deferred writes where there are no transactions
reconciler      adds events that a writer without transactions failed to add; `reconciler_rules`
                decide which documents need one
upsert          idempotent writes for handlers without transactions
errors          what an error of pymongo means to the port
checks          for `postroom doctor`: version, kind of deployment, clock, rights
"""

from postroom.stores.mongo.embedded import EmbeddedOutbox
from postroom.stores.mongo.reconciler import Reconciler, Report
from postroom.stores.mongo.reconciler_rules import FoundBy, HasResult, Marked, Recent
from postroom.stores.mongo.store import MongoStore
from postroom.stores.mongo.upsert import upsert, upsert_sync
from postroom.transactions.mongo import in_database, without_transaction

__all__ = [
    "EmbeddedOutbox",
    "FoundBy",
    "HasResult",
    "Marked",
    "MongoStore",
    "Recent",
    "Reconciler",
    "Report",
    "in_database",
    "upsert",
    "upsert_sync",
    "without_transaction",
]
