"""Carries out the steps of one operation that this process holds.

Each step is one transaction of the store: events and position change together. A driver keeps
nothing that is not stored, so that another process can continue after any step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from postroom.engine.lock_retries import past_locks
from postroom.engine.operations.request import (
    CANARY,
    Position,
    ReplayRequest,
    read_position,
    read_request,
)
from postroom.errors import ConfigError, StoreError, StoreRefusedError
from postroom.model.pauses import Pauses
from postroom.operation import LEASE_SECONDS, Operation, OperationState, Step
from postroom.record import Record, State, short_error
from postroom.store import Store

STEP: Final = 500  # events per transaction: small enough not to delay a relay
RENEW_SECONDS: Final = LEASE_SECONDS / 6
_FIRST_PAGE = 100
_PAGE_BYTES = 8_000_000  # records include payloads
_FIRST_LOOK, _LONGEST_LOOK = 0.05, 2.0  # at the events of a canary
_NAMED = 3  # failed events in an error
_RELEASE_SECONDS = 2.0
_FAILED = (State.FAILED, State.DEAD)
_OPEN = (State.PENDING, State.PROCESSING)

_log = logging.getLogger(__name__)


async def drive(
    store: Store, held: Operation, on_step: Callable[[int], None] | None = None
) -> None:
    """Run an operation until it ends, or another process or an operator takes it away.

    Raises StoreError; the next process that takes the operation then continues it. Any other error
    stops this operation only. A driver that is cancelled or meets an error gives its lease up.
    """
    try:
        request = read_request(held)
        driver = Driver(store, held, request, read_position(held, request), on_step)
        await driver.run()
    except ConfigError as error:
        await _stop(store, held, str(error))
    except StoreRefusedError as error:  # a retry would fail again
        await _stop(store, held, short_error(error))
    except (StoreError, asyncio.CancelledError):
        await _release(store, held)
        raise
    except Exception as error:
        _log.exception("operation %s stopped", held.id)
        await _stop(store, held, f"an error of postroom: {short_error(error)}")


async def _stop(store: Store, held: Operation, error: str) -> None:
    await store.advance_operation(held, Step(to=OperationState.STOPPED, error=error))


async def _release(store: Store, held: Operation) -> None:
    """Let another process continue at once; otherwise it waits until the lease expires."""
    try:
        async with asyncio.timeout(_RELEASE_SECONDS):
            await store.advance_operation(held, Step(release=True))
    except (StoreError, TimeoutError) as error:
        _log.info("operation %s is free when its lease expires: %s", held.id, short_error(error))


class Driver:
    """One operation with its request and position."""

    def __init__(
        self,
        store: Store,
        held: Operation,
        request: ReplayRequest,
        position: Position,
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self._store, self._held, self._request = store, held, request
        self._position = position
        self._handled = held.handled
        self._on_step = on_step or (lambda _: None)
        self._page = _FIRST_PAGE
        self._alone = 0  # the next events go one by one: one of them was refused
        self._error: str | None = None

    async def run(self) -> None:
        while await self._group_is_sent():
            if self._is_enough:
                await self._advance(Step(to=OperationState.DONE, error=self._error))
                return
            chosen, seq, is_last = await self._next()
            ends = is_last and (not self._request.canary or not chosen) and self._alone <= 1
            try:
                sent = await self._replay(chosen, seq, ends=ends)
            except StoreRefusedError as error:
                sent, ends = await self._without(chosen, error), False
            if sent is None or ends:
                return
            if self._request.per_second is not None and not await self._rest(
                len(sent) / self._request.per_second
            ):
                return

    @property
    def _is_enough(self) -> bool:
        limit = self._request.limit
        return limit is not None and self._handled >= limit

    @property
    def _size(self) -> int:
        """The number of events in the next step."""
        request, size = self._request, STEP
        if request.canary:
            size = CANARY[min(self._position.group, len(CANARY) - 1)]
        if request.limit is not None:
            size = min(size, request.limit - self._handled)
        if request.per_second is not None:
            size = min(size, max(1, int(request.per_second)))
        return 1 if self._alone else size

    async def _next(self) -> tuple[list[Record], int, bool]:
        """Return the next events, the number they end with, and whether no others follow."""
        size = self._size
        limit = self._page if self._request.group is not None else min(size, self._page)
        wanted = self._request.filter._replace(after_seq=self._position.seq, limit=limit)
        page = await self._store.find(wanted)
        if page:
            mean = max(1, sum(record.size for record in page) // len(page))
            self._page = max(1, min(STEP, _PAGE_BYTES // mean))
        found = [record for record in page if self._request.matches(record)]
        if len(found) > size:
            return found[:size], found[size - 1].seq, False
        return found, page[-1].seq if page else self._position.seq, len(page) < limit

    async def _replay(
        self, chosen: Sequence[Record], seq: int, *, ends: bool
    ) -> tuple[str, ...] | None:
        canary = self._request.canary
        before = self._position

        def moved(sent: Sequence[str]) -> Position:
            group = before.group + (1 if sent else 0)
            return Position(seq, group, tuple(sent)) if canary else Position(seq)

        step = Step(
            lambda sent: moved(sent).text(),
            [record.id for record in chosen],
            of_state=str(self._request.filter.state),
            new_id=self._request.new_id,
            to=OperationState.DONE if ends else OperationState.RUNNING,
            error=self._error,
        )
        sent = await self._advance(step)
        if sent is not None:
            self._position = moved(sent)
            self._alone = max(0, self._alone - 1)
        return sent

    async def _without(
        self, chosen: Sequence[Record], error: StoreRefusedError
    ) -> tuple[str, ...] | None:
        """One of these events is refused by the store: find it, count it, and leave it out."""
        if len(chosen) > 1:
            self._alone = len(chosen) + 1
            return ()
        (record,) = chosen
        self._error = f"{record.id} cannot be replayed: {short_error(error)}"
        position = Position(record.seq, self._position.group)
        step = Step(lambda _: position.text(), failed=1, error=self._error)
        sent = await self._advance(step)
        self._position, self._alone = position, max(0, self._alone - 1)
        return sent

    async def _group_is_sent(self) -> bool:
        """Wait until the events of a canary's last group are finished; False if one failed, or
        the operation was lost.
        """
        watched = self._position.watched
        looks, waited = Pauses(_FIRST_LOOK, _LONGEST_LOOK), 0.0
        while watched:
            there = await self._store.look_up(watched)
            failed = [one for one in watched if one in there and there[one].state in _FAILED]
            if failed:
                await self._stop_for(failed)
                return False
            if not any(one in there and there[one].state in _OPEN for one in watched):
                break
            pause = looks.grow()
            waited += pause
            await asyncio.sleep(pause)
            if waited >= RENEW_SECONDS:
                waited = 0.0
                if await self._advance(Step(error=self._error)) is None:
                    return False
        self._position = self._position._replace(watched=())
        return True

    async def _stop_for(self, failed: Sequence[str]) -> None:
        """Stop; when it is resumed it continues with the next event, and a group of one."""
        told = []
        for name in failed[:_NAMED]:
            record = await self._store.get(name)
            told.append(f"{name} ({record.last_error if record else 'gone'})")
        more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        position = Position(self._position.seq)
        step = Step(
            lambda _: position.text(),
            failed=len(failed),
            to=OperationState.STOPPED,
            error=f"failed again: {', '.join(told)}{more}",
        )
        await self._advance(step)

    async def _rest(self, seconds: float) -> bool:
        """Keep to the rate; False if the operation was lost meanwhile."""
        while seconds > 0:
            pause = min(seconds, RENEW_SECONDS)
            await asyncio.sleep(pause)
            seconds -= pause
            if seconds > 0 and await self._advance(Step(error=self._error)) is None:
                return False
        return True

    async def _advance(self, step: Step) -> tuple[str, ...] | None:
        sent = await past_locks(lambda: self._store.advance_operation(self._held, step))
        if sent is not None:
            self._handled += len(sent)
            self._on_step(self._handled)
        return sent
