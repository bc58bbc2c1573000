"""Makes events due that waited for the end of their topic's pause, or for another limit."""

from __future__ import annotations

import asyncio

from postroom.engine.relay.context import RelayContext
from postroom.engine.relay.held_back import held_mark
from postroom.engine.service import Service, is_cancelled
from postroom.errors import StoreError
from postroom.lookup import Filter
from postroom.model.pauses import Pauses
from postroom.record import State

_STEP = 100  # records include payloads, which may be large
_AGAIN_SECONDS = 1.0  # events that were just being held are found by a second search
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0


class HeldEvents(Service):
    """Searches for the held events of each topic whose pause has ended or whose limit changed."""

    def __init__(self, context: RelayContext) -> None:
        super().__init__()
        self._context = context

    async def loop(self) -> None:
        context, pauses = self._context, Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        while not is_cancelled():
            await context.topic_freed.wait()
            context.topic_freed.clear()
            topics, context.paused.freed = context.paused.freed, set()
            try:
                for _ in range(2):
                    for topic in topics:
                        await self.free(topic)
                    await asyncio.sleep(_AGAIN_SECONDS)
            except StoreError as error:
                context.trouble("freeing held events", error)
                await asyncio.sleep(pauses.grow())
                context.paused.freed |= topics - context.paused.topics.keys()
                context.topic_freed.set()
                continue
            pauses.reset()
            context.recovered("freeing held events")

    async def free(self, topic: str) -> None:
        """Make the held events of this topic due, in small steps; ends at the next pause."""
        context = self._context
        wanted = Filter(
            stream=context.stream, state=State.FAILED, topic=topic, error=held_mark(topic),
            limit=_STEP,
        )  # fmt: skip
        while topic not in context.paused.topics:
            page = await context.store.find(wanted)
            if page:
                await context.store.retry_now([record.id for record in page])
                context.look_soon.set()
            if len(page) < _STEP:
                return
            wanted = wanted._replace(after_seq=page[-1].seq)
