"""Stores: the databases that hold an outbox, behind the port `postroom.store`.

Packages: memory, sqlite, postgres, mysql, mongo. One role has the same file name in each of them:

store                 the class; each method of the port, in a line or two
settings              its options, from a URL or by name
schema                creates, migrates and checks the tables
leases                heartbeat, take, renew and release lanes; the fence of a settle
read                  reads the events that may be sent now
stage                 makes events readable once they are due
settle                writes outcomes behind the fence
blocks                keys blocked by a failed head: lets them go on, repairs their blocks
prune                 deletes old done events, and old dead letters
lookup                operators' questions: get, find, count
commands              operators' commands: replay, edit, bury, skip, purge, retry now
audit                 the log of commands that changed events by hand
controls              pauses of streams, topics and consumers
operations            stored work on many events, in fenced steps
handler_transactions  transactions for handlers, which handlers cannot commit themselves
errors                what an error of the driver means: retryable, refused, or unknown
checks                what `postroom doctor` asks of the server

`operations` and `controls` of this package are the audit entries that all stores share.
`opening` is `open_store`, and makes every store an async context manager. SQL is in `queries/` and
`migrations/`, one statement a file; `sql_files` loads it, and `migration_scripts` makes text of it
for other tools. `membership` reads members and leases
from rows; `lock_pauses` waits for locked rows; `schema_version` refuses tables of the future. Every
store passes `postroom.testing.store`. `edits` validates edited dead letters. `adoption` has the
options and checks of `migrate adopt`.
"""
