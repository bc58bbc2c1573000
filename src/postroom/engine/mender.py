"""The mender repairs blocks from state, beside the heartbeat: it may take long (B4)."""

from __future__ import annotations

import asyncio

from postroom.engine.office import Office
from postroom.engine.service import Service
from postroom.errors import StoreError

_STEP = 100
_TRIES = 5
_FIRST_PAUSE = 0.2


class Mender(Service):
    """Mends the lanes that the tender asks for: those just taken, and all of them now and then.

    Until it has come to a lane, a key that could go on may wait there; nothing is sent too early.
    """

    def __init__(self, office: Office) -> None:
        super().__init__()
        self._office = office

    async def loop(self) -> None:
        office = self._office
        while True:
            await office.mend.wait()
            office.mend.clear()
            lanes, office.to_mend = office.to_mend, set()
            office.mending = True
            await self._mend_patiently(lanes)
            office.mending = False
            office.wake()

    async def _mend_patiently(self, lanes: set[int]) -> None:
        """Mend; after some errors in a row it is left to the next time."""
        office, pause = self._office, _FIRST_PAUSE
        for _ in range(_TRIES):
            try:
                await self._mend(lanes)
            except StoreError as error:
                office.trouble("mending blocks", error)
                await asyncio.sleep(pause)
                pause *= 2
            else:
                return

    async def _mend(self, lanes: set[int]) -> None:
        office = self._office
        while tokens := office.keeper.tokens(lanes):
            if await office.store.mend(office.stream, office.owner, tokens, _STEP) < _STEP:
                return
