"""Looks for operations that no process runs, and drives them: one query per store and process.

An operation therefore continues after the process that started it has ended, as long as one relay
of the store runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from uuid import uuid4
from weakref import WeakKeyDictionary

from postroom.engine.operations.driver import drive
from postroom.engine.service import Service, end, is_cancelled
from postroom.errors import StoreError
from postroom.model.pauses import Pauses
from postroom.operation import Operation, OperationState
from postroom.store import Store

LOOK_SECONDS = 5.0
_LONGEST_PAUSE = 60.0
_AT_ONCE = 4  # a slow operation does not delay the others
_LIMIT = 100

READING = "reading operations"

_log = logging.getLogger(__name__)


class _Board:
    """The unfinished operations of one store, as this process saw them last."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.owner = str(uuid4())
        self.seen: list[Operation] = []
        self.driven: set[str] = set()
        self._stopped: set[str] = set()
        self._pauses: dict[str, Pauses] = {}
        self._not_before: dict[str, float] = {}
        self._looked_at = self.loop.time()
        self._turn = asyncio.Lock()

    @property
    def rest(self) -> float:
        """The time until the next look, which one relay of this process makes for all."""
        return max(self._looked_at + LOOK_SECONDS - self.loop.time(), 0.05)

    async def look(self, store: Store) -> Sequence[Operation]:
        """Return the operations to drive, oldest first; none if another relay has just looked."""
        async with self._turn:
            if self.loop.time() - self._looked_at < LOOK_SECONDS:
                return ()
            self._looked_at = self.loop.time()
            self.seen = await store.operations(unfinished=True, limit=_LIMIT)
            self._report()
        return [one for one in reversed(self.seen) if self._is_ours(one)]

    def _report(self) -> None:
        """Log operations that have stopped, each once: they wait for an operator."""
        stopped = {one.id: one for one in self.seen if one.state == OperationState.STOPPED}
        for name in stopped.keys() - self._stopped:
            _log.warning(
                "operation %s stopped: %s; see: postroom operations", name, stopped[name].error
            )
        self._stopped = set(stopped)

    def _is_ours(self, one: Operation) -> bool:
        """Return whether to drive it: it is free, or this process has met an error with it."""
        kept = one.state == OperationState.RUNNING and one.owner == self.owner
        is_due = self.loop.time() >= self._not_before.get(one.id, 0.0)
        return (one.free or kept) and one.id not in self.driven and is_due

    def failed(self, operation_id: str) -> None:
        """Leave an operation to other processes for a while, longer after each failure."""
        pauses = self._pauses.setdefault(operation_id, Pauses(LOOK_SECONDS, _LONGEST_PAUSE))
        self._not_before[operation_id] = self.loop.time() + pauses.grow()

    def succeeded(self, operation_id: str) -> None:
        self._pauses.pop(operation_id, None)
        self._not_before.pop(operation_id, None)


_boards: WeakKeyDictionary[Store, _Board] = WeakKeyDictionary()


def _board_of(store: Store) -> _Board:
    board = _boards.get(store)
    if board is None or board.loop is not asyncio.get_running_loop():
        board = _boards[store] = _Board()
    return board


class OperationWatch(Service):
    """A relay's part in the operations of its store."""

    def __init__(
        self,
        store: Store,
        *,
        trouble: Callable[[str, BaseException], None],
        recovered: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._store, self._board = store, _board_of(store)
        self._trouble, self._recovered = trouble, recovered
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def seen(self) -> list[Operation]:
        """The unfinished operations, as they were seen last."""
        return self._board.seen

    async def loop(self) -> None:
        pauses = Pauses(LOOK_SECONDS, _LONGEST_PAUSE)
        try:
            while not is_cancelled():
                await asyncio.sleep(self._board.rest)
                try:
                    free = await self._board.look(self._store)
                except StoreError as error:
                    self._trouble(READING, error)
                    await asyncio.sleep(pauses.grow())
                    continue
                pauses.reset()
                self._recovered(READING)
                for one in free[: _AT_ONCE - len(self._tasks)]:
                    self._begin(one.id)
        finally:
            await end(*self._tasks.values())

    def _begin(self, operation_id: str) -> None:
        def ended(_: object) -> None:
            del self._tasks[operation_id]
            self._board.driven.discard(operation_id)

        self._board.driven.add(operation_id)
        task = asyncio.create_task(self._drive(operation_id), name=f"operation-{operation_id}")
        self._tasks[operation_id] = task
        task.add_done_callback(ended)

    async def _drive(self, operation_id: str) -> None:
        """Drive one operation. After an error of the store a later look takes it up again."""
        what = f"running operation {operation_id} (will be tried again)"
        try:
            held = await self._store.take_operation(operation_id, self._board.owner)
            if held is not None:
                await drive(self._store, held)
        except Exception as error:  # the other operations go on
            self._board.failed(operation_id)
            self._trouble(what, error)
        else:
            self._board.succeeded(operation_id)
            self._recovered(what)
