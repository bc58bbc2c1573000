"""What a benchmark runs on: its sizes, and real servers that end with each part."""

from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.rounds import say


@dataclass
class Yard:
    """Sizes and servers of one run.

    Servers are those of the tests, with fsync on. Each part has its own, so that none works beside
    those of another.
    """

    quick: bool = False
    rounds: int = 5
    batch: int = 500
    soak_events: int = 10_000_000
    plots: str | None = None
    _stack: ExitStack = field(default_factory=ExitStack)
    _servers: dict = field(default_factory=dict)

    def size(self, full, quick):
        """The one number in a whole run, the other with --quick."""
        return quick if self.quick else full

    def server(self, name):
        """Return a started server by its name in tests/servers."""
        if name not in self._servers:
            from tests.servers.catalog import SERVERS

            say(f"starting {name}")
            self._servers[name] = self.enter(SERVERS[name].make())
        return self._servers[name]

    def enter(self, context):
        """Enter something that ends with the part."""
        return self._stack.enter_context(context)

    def release(self):
        """Stop everything; the next part begins anew."""
        self._servers.clear()
        self._stack.close()
