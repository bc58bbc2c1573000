"""Keys of a direct consumer whose messages are stored in the durable inbox for a while.

A message that fails is retried in place, and later messages of its key wait behind it, in flight.
When such messages fill half of the in-flight limit, other keys would soon have no room. The largest
of these keys are then stored in the durable inbox, acknowledged, and handled from there, in order,
which frees their room.

A later message of such a key must not overtake the stored ones, whichever process stored them. With
every receive the consumer therefore asks the store which keys have stored messages, and stores
their new messages as well. At `max_stored` messages it receives nothing until there are fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from postroom.engine.consumer.context import ConsumerContext, Received
from postroom.observer import Alarm
from postroom.transactions.conflicts import is_passing

_FULL_SECONDS = 1.0


class Detours:
    """Decides which keys are stored; `count` returns how many messages of a key are in flight."""

    def __init__(self, context: ConsumerContext, room: int, count: Callable[[bytes], int]) -> None:
        self._context = context
        self._room = room
        self._count = count
        self._resting: set[bytes] = set()
        self._asked: set[bytes] = set()
        self._recent: set[bytes] = set()  # stored since the last look began
        self._refused: set[bytes] = set()
        self._is_full = False

    # -- which keys wait ----------------------------------------------------------------------
    def rests(self, key: bytes) -> None:
        """Called when the first message of a key begins a long wait."""
        self._resting.add(key)
        self.relieve()

    def goes_on(self, key: bytes) -> None:
        """Called when that wait is over."""
        self._resting.discard(key)

    def relieve(self) -> None:
        """Request that the largest waiting keys be stored, if they fill half of the in-flight
        limit.
        """
        if self._is_full:
            return
        waiting = {key: self._count(key) for key in self._resting - self._refused - self._asked}
        total = sum(waiting.values())
        if total * 2 < self._room:
            return
        for key in sorted(waiting, key=lambda key: -waiting[key]):
            self._asked.add(key)
            total -= waiting[key]
            if total * 4 < self._room:
                break

    def is_asked(self, key: bytes) -> bool:
        """Return whether this key's messages should be stored instead of waited for."""
        return key in self._asked

    def left(self, key: bytes, *, kept: bool) -> None:
        """Called when no message of a key is in flight any more, with whether some were stored."""
        for keys in (self._resting, self._asked, self._refused):
            keys.discard(key)
        if kept:
            self._recent.add(key)

    def refuse(self, key: bytes) -> None:
        """Called when a key has a message that no row can hold: it waits in place."""
        self._asked.discard(key)
        self._refused.add(key)

    async def keep(self, messages: Sequence[Received]) -> bool:
        """Store messages of one key, in order, and acknowledge them.

        False: no row can hold one of them, which raises an alarm, or the consumer stops.
        """
        context, pauses = self._context, self._context.pauses()
        while ours := [received for received in messages if not received.delivery.is_lost]:
            try:
                await context.durable_inbox.keep(
                    [(one.delivery.message, one.record) for one in ours]
                )
            except Exception as error:
                if not is_passing(error):
                    context.cannot_be_kept(ours[0], error)
                    return False
                context.trouble("keeping messages", error)
                if context.stopping.is_set():
                    return False
                await context.pause(pauses.grow())
            else:
                context.recovered("keeping messages")
                context.counts.stored += len(ours)
                for one in ours:
                    one.delivery.ack()
                return True
        return True

    # -- which keys have stored messages ----------------------------------------------------------
    async def look(self) -> set[bytes]:
        """Return the keys that have stored messages; waits while the durable inbox is full."""
        pauses = self._context.pauses()
        while True:
            before = set(self._recent)
            try:
                found = await self._open_keys()
            except Exception as error:
                if not is_passing(error):
                    raise
                self._context.trouble("looking", error)
                await self._context.pause(pauses.grow())
                continue
            self._context.recovered("looking")
            self._recent -= before
            if not self._is_full or self._context.stopping.is_set():
                return found | self._recent | self._asked
            await self._context.pause(_FULL_SECONDS)

    async def _open_keys(self) -> set[bytes]:
        most = self._context.settings.max_stored
        found = await self._context.durable_inbox.store.open_keys(self._context.stream, most)
        self._note(full=len(found) >= most)
        return set(found)

    def _note(self, *, full: bool) -> None:
        if full and not self._is_full:
            said = (
                f"{self._context.settings.max_stored} or more stored messages wait for a retry "
                "of their key: "
                "the consumer receives nothing until there are fewer. See `postroom list --stream "
                f"{self._context.stream}`; raise max_stored, or bury those that cannot be handled"
            )
            self._context.tell(Alarm(self._context.stream, "the durable inbox is full", said))
        self._is_full = full
