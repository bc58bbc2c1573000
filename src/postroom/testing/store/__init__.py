"""The contract of a Store: one suite, put together from the parts below.

suite            StoreContract and the life of a store: open, close, migrate
write            events as they are written; read: which of them a read returns, and in which order
port             what a store says of itself, and pruning of its inbox
lanes            leases, members, clocks and the fence
settle           outcomes; `set_back`: an event is its number and its id; `claims`: lost effects
history          failed attempts and commands, recorded with the event
receipts         where its destination put an event, recorded with its done row
blocks           failed events and their keys
lookup           what operators ask; `audit` the audit log and the causes of dead letters
search           what an index finds, and the bounds of searches
commands         what operators change; `controls` pauses, and failed events that are made due;
                 `purge` dead letters that are deleted; `edit` those that are sent with changes;
                 `forget` events that are erased; `waiting` delayed events that are cancelled or
                 rescheduled
operations       stored work on many events: owners, and steps that are fenced
handlers         waking, and transactions of handlers
unreadable_rows, strays    rows that others have written or damaged cost one event each
tools            events, and a relay reduced to its calls of the store
"""

from postroom.testing.store.suite import StoreContract

__all__ = ["StoreContract"]
