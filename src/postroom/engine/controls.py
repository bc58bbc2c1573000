"""Reads the controls of operators about once a second: one query per store and process.

Relays and consumers of one process share what was read. If the store cannot be read, the last known
controls stay in force.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from postroom.engine.service import Service, is_cancelled
from postroom.errors import StoreError
from postroom.model.controls import Control
from postroom.model.pauses import Pauses
from postroom.store import Store

LOOK_SECONDS = 0.8  # a relay stops sending within a second
_LONGEST_PAUSE = 5.0  # between looks that fail

READING = "reading controls"


class _Reader:
    """The controls of one store, as they were read last."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._read: list[Control] = []
        self.read_at: float | None = None

    async def read(self, store: Store, max_age: float) -> list[Control]:
        """Return the controls; reads them again unless they are younger than that."""
        async with self._turn:
            now = self.loop.time()
            if self.read_at is None or now - self.read_at >= max_age:
                self._read = await store.controls()
                self.read_at = now
            return self._read


_readers: WeakKeyDictionary[Store, _Reader] = WeakKeyDictionary()


def _reader_of(store: Store) -> _Reader:
    reader = _readers.get(store)
    if reader is None or reader.loop is not asyncio.get_running_loop():
        reader = _readers[store] = _Reader()
    return reader


class ControlWatch(Service):
    """Passes the controls to `apply`, whether they changed or not."""

    def __init__(
        self,
        store: Store,
        apply: Callable[[Sequence[Control]], None],
        *,
        trouble: Callable[[str, BaseException], None],
        recovered: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._store, self._reader = store, _reader_of(store)
        self._apply = apply
        self._trouble, self._recovered = trouble, recovered

    async def look(self) -> None:
        """Read the controls now, before the first event is read. Raises StoreError."""
        self._apply(await self._reader.read(self._store, 0.0))

    async def loop(self) -> None:
        pauses = Pauses(LOOK_SECONDS, _LONGEST_PAUSE)
        while not is_cancelled():
            await asyncio.sleep(self._rest())
            try:
                found = await self._reader.read(self._store, LOOK_SECONDS / 2)
            except StoreError as error:
                self._trouble(READING, error)
                await asyncio.sleep(pauses.grow())
                continue
            pauses.reset()
            self._recovered(READING)
            self._apply(found)

    def _rest(self) -> float:
        """Return the time until the next look, which all relays of this process make together."""
        read_at, now = self._reader.read_at, self._reader.loop.time()
        return LOOK_SECONDS if read_at is None else max(read_at + LOOK_SECONDS - now, 0.05)
