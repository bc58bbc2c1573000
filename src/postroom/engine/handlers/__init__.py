"""Handlers: functions of this process, as the destination of a relay or behind a consumer.

An event passes the modules in this order:

handlers      registers functions; `signatures` checks them and has their types, `names` checks
              their names, `import_path` loads them by URL
dispatch      takes an event, or a batch, through its handlers to an outcome
key_batches   picks the next event of each key, alone or with others for one transaction
limiter       bounds concurrency; `threads` runs sync functions; `runtime` holds both
runs          one event: transaction, inbox row, handler, check, commit. `thread_runs`: the same for
              sync functions; `batch_runs`: several events
high_water    replaces the inbox row for strict keys by the last number that took effect
context       the optional third argument of a handler: adds events that continue the causation
commit_check  asks the database, before the commit, whether the inbox row is still in it
undecodable   recognizes a handler that failed because the payload cannot be decoded
inbox_proofs  tells the relay which inbox rows its settle must find

`tables` holds the table names that handlers write to. `options` is the type of a bus module's
options.
"""

from postroom.engine.handlers.handlers import Handlers

__all__ = ["Handlers"]
