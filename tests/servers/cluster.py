"""Several servers that are started, ended and harmed together."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from tests.servers.keeper import ProcessState
from tests.servers.process import Running, Server


class Cluster(Running):
    """Several servers that work together, started and ended at the same time."""

    def __init__(self, members: Sequence[Server]) -> None:
        self._members = members

    def wait_ready(self) -> None:
        """Wait until every member answers."""
        for member in self._members:
            member.wait_ready()

    @property
    def pids(self) -> list[int]:
        return [pid for member in self._members for pid in member.pids]

    @property
    def keepers(self) -> list[ProcessState]:
        return [state for member in self._members for state in member.keepers]

    def start(self) -> Self:
        try:
            self._each(lambda member: member.launch())
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        self._each(lambda member: member.stop())

    def release(self) -> None:
        self._each(lambda member: member.release())

    def kill(self) -> None:
        self._each(lambda member: member.kill())

    def freeze(self) -> None:
        self._each(lambda member: member.freeze())

    def thaw(self) -> None:
        self._each(lambda member: member.thaw())

    def restart(self) -> None:
        self.kill()
        self._each(lambda member: member.launch())
        self.wait_ready()

    def _each(self, action: Callable[[Server], None]) -> None:
        with ThreadPoolExecutor(len(self._members)) as pool:
            list(pool.map(action, self._members))
