"""A store in this process' memory: for tests, examples and the simulation.

It keeps what makes a real database hard: a transaction takes its sequence numbers when it writes,
but its rows are seen only after its commit, so that a lower number may appear after a higher one;
each call sees one snapshot; a second writer of one counter or one inbox row waits for the first.
"""

from postroom.stores.memory.store import MemoryStore
from postroom.stores.memory.transaction import MemoryTransaction

__all__ = ["MemoryStore", "MemoryTransaction"]
