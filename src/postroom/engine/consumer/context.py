"""State that the parts of a consumer share: received messages, counts, access to the store."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from postroom.engine.consumer.durable_inbox import DurableInbox
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.store_calls import StoreCalls
from postroom.model.clock import Clock
from postroom.model.pauses import Pauses
from postroom.observer import Alarm, Buried, Fact, Observer, tell
from postroom.record import Record, short_error
from postroom.settings import ConsumerSettings
from postroom.source import Delivery
from postroom.transactions.conflicts import is_passing

if TYPE_CHECKING:
    from postroom.engine.consumer.detours import Detours


_FIRST_PAUSE = 0.1


_GRAVES = 4  # dead letters written concurrently


class Received(NamedTuple):
    """A message in flight, and its event.

    problem     why it cannot be handled: it becomes a dead letter
    keep        it is to be stored: the durable inbox holds others of its key
    """

    delivery: Delivery
    record: Record
    problem: str = ""
    keep: bool = False


@dataclass(slots=True)
class ConsumerCounts:
    """Counters of a consumer since its start.

    done        messages whose handlers committed, including repeats
    repeats     … that were done before and had no further effect
    stored      messages stored to be handled later
    hashed_ids  messages identified only by a hash of their body
    lost        messages lost to another consumer before they finished
    batched     messages handled in a transaction with others
    split       messages whose batch was rolled back; each was then handled individually
    """

    received: int = 0
    done: int = 0
    repeats: int = 0
    stored: int = 0
    failed: int = 0
    dead: int = 0
    ignored: int = 0
    hashed_ids: int = 0
    lost: int = 0
    batched: int = 0
    split: int = 0


@dataclass(slots=True)
class ConsumerContext:
    """State that the parts of one running consumer share."""

    settings: ConsumerSettings
    handlers: Handlers
    durable_inbox: DurableInbox
    clock: Clock
    observers: tuple[Observer, ...] = ()
    counts: ConsumerCounts = field(default_factory=ConsumerCounts)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    detours: Detours | None = None
    store_calls: StoreCalls = field(init=False)
    graves: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_GRAVES))

    def __post_init__(self) -> None:
        self.store_calls = StoreCalls(self.tell)

    @property
    def stream(self) -> str:
        return self.durable_inbox.stream

    def tell(self, fact: Fact) -> None:
        tell(self.observers, fact)

    def trouble(self, doing: str, error: BaseException) -> None:
        self.store_calls.failed(self.stream, doing, error)

    def recovered(self, doing: str) -> None:
        """Calls to the store whose name begins with this have succeeded."""
        self.store_calls.succeeded(self.stream, doing)

    async def pause(self, seconds: float) -> None:
        """Wait this long, or until the consumer stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self.stopping.wait()

    def pauses(self) -> Pauses:
        """Return the pauses of one call that is repeated while the store fails."""
        return Pauses(_FIRST_PAUSE, self.settings.max_outage_seconds)

    async def bury(
        self,
        received: Received,
        reason: str,
        history: str | None = None,
        *,
        attempts: int = 0,
        traceback: str = "",
    ) -> bool:
        """Durably make a dead letter of a message, with the history of its attempts.

        False if the message belongs to another consumer now, the consumer stops, or no row can hold
        the message, which raises an alarm.
        """
        pauses = self.pauses()
        while not received.delivery.is_lost:
            try:
                async with self.graves:
                    await self.durable_inbox.bury(
                        received.delivery.message, received.record, reason, history, attempts
                    )
            except Exception as error:
                if not is_passing(error):
                    self.cannot_be_kept(received, error)
                    return False
                self.trouble("writing a dead letter", error)
                if self.stopping.is_set():
                    return False
                await self.pause(pauses.grow())
            else:
                self.recovered("writing a dead letter")
                self.counts.dead += 1
                of = received.record
                self.tell(
                    Buried(self.stream, of.id, of.type, of.topic, attempts, reason, traceback)
                )
                return True
        return False

    def cannot_be_kept(self, received: Received, error: Exception) -> None:
        """A message that no row can hold stays in the broker: it is never acknowledged."""
        about = f"message {received.record.id} can be neither handled nor stored"
        self.tell(Alarm(self.stream, about, short_error(error), received.record.id))
