"""Sources: where consumers get their messages. Each passes `postroom.testing.consumer`."""

from postroom.sources.memory import MemorySource

__all__ = ["MemorySource"]
