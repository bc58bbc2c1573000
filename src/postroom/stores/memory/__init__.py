"""A store in the memory of this process: for tests, examples and the simulation.

store         the port; each call is one atomic step
tables        the rows, and their moves between stages
transaction   the caller's transaction; also its own write-side adapter
lookup        get, find, count; `search`: by index, or within bounds
commands      replay, bury, skip, purge, retry now, cancel, reschedule
operations    stored work on many events, in fenced steps

It models what is hard about a real database: a transaction takes its sequence numbers when it
writes, but its rows become visible at its commit, so that a lower number may appear after a higher
one; each call sees one snapshot; a second writer of one counter or inbox row waits for the first.
"""

from postroom.stores.memory.store import MemoryStore
from postroom.stores.memory.transaction import MemoryTransaction

__all__ = ["MemoryStore", "MemoryTransaction"]
