"""The sessions in use, and the handling of their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Literal, NamedTuple

from postroom.broker import Outcome
from postroom.brokers.kafka import verdicts
from postroom.brokers.kafka.log import LogLines
from postroom.brokers.kafka.message import Writer
from postroom.brokers.kafka.publish_call import PublishCall
from postroom.brokers.kafka.session import Session
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.brokers.kafka.topics import Topics
from postroom.brokers.kafka.verdicts import Loss
from postroom.brokers.outages import UnreachableError
from postroom.record import Record

Use = Literal["batch", "alone"]
Unavailable = Mapping[tuple[str, int | None], str]

GRACE_SECONDS = 3.0
CLOSE_SECONDS = 5.0
CAUTION_SECONDS, LONGEST_CAUTION = 5.0, 60.0
IDLE_SECONDS = 60.0
ONE_BY_ONE = 0
_STEP = 4  # of batch sizes: topics with limits of one order of magnitude share a session
_JUST_NOW_SECONDS = 1.0
_ALL_AVAILABLE: Unavailable = {}


class Caution(NamedTuple):
    """Until when a topic is served message by message, and for how long if it refuses again."""

    until: float = 0.0
    seconds: float = CAUTION_SECONDS

    def again(self, now: float) -> Caution:
        """It has refused a batch: longer each time, unless the last time is long ago."""
        if now < self.until:  # sent together before that was known
            return self
        recent = now < self.until + LONGEST_CAUTION
        seconds = min(self.seconds * 2, LONGEST_CAUTION) if recent else CAUTION_SECONDS
        return Caution(now + seconds, seconds)


class Sessions:
    """Sessions for batches, and a separate one for suspects.

    Usually all topics share one session. A topic with a smaller limit, or one that has just refused
    a batch, must not slow down the others: it gets a session with smaller batches, or with one
    message per batch. Sessions are identified by their batch size.

    After its first error a session is retired and the next call gets a new one. Calls that are
    still on the old one have a grace period to finish.
    """

    def __init__(
        self, settings: KafkaSettings, topics: Topics, write: Writer, lines: LogLines
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._write = write
        self._lines = lines
        self._used: dict[tuple[Use, int], Session] = {}
        self._ending: set[Session] = set()
        self._chores: set[asyncio.Task[None]] = set()
        self._caution: dict[str, Caution] = {}

    def warm_up(self) -> None:
        """Start a session before it is needed: its producer takes half a second to be ready."""
        size = self._settings.batch_bytes
        self._used["batch", size] = session = self._new(size)
        session.suspect = True  # no broker has answered yet

    def let_idle_go(self) -> None:
        """End the sessions of single topics that are no longer needed."""
        for (_, size), session in list(self._used.items()):
            idle = not session.calls and session.used_at < monotonic() - IDLE_SECONDS
            if idle and size != self._settings.batch_bytes:
                self._give_up(session)

    async def close(self) -> None:
        for chore in list(self._chores):
            chore.cancel()
        for session in list(self._used.values()):
            self._give_up(session)
            session.end()
        ending, self._ending = self._ending, set()
        for session in ending:
            session.end()
        for session in ending:
            await session.gone(CLOSE_SECONDS)

    # -- a call -------------------------------------------------------------------------------
    def share_out(self, batch: Sequence[Record]) -> Mapping[int, Sequence[Record]]:
        """Divide a batch by the batch size of its topics; keys stay whole."""
        topic_of = self._settings.topic_of
        sizes = {name: self._size_for(name) for name in {topic_of(record) for record in batch}}
        if len(set(sizes.values())) == 1:
            return {next(iter(sizes.values())): batch}
        by_key: dict[bytes, int] = {}
        for record in batch:
            size, key = sizes[topic_of(record)], record.key_hash
            by_key[key] = min(size, by_key.get(key, size))
        found: dict[int, list[Record]] = {}
        for record in batch:
            found.setdefault(by_key[record.key_hash], []).append(record)
        return found

    async def ready(self, use: Use, size: int = ONE_BY_ONE) -> Session:
        """Return a session, once the cluster is known to be reachable. Raises UnreachableError."""
        session = self._usable(use, size)
        if session is None or session.suspect:
            if session is not None or self._topics.answered_at < monotonic() - _JUST_NOW_SECONDS:
                await self._topics.ask()
            if session is not None:
                session.suspect = False
            session = self._usable(use, size)
        if session is None:
            self._used[use, size] = session = self._new(size)
        session.used_at = monotonic()
        return session

    async def deliver(
        self,
        session: Session,
        call: PublishCall,
        first: Sequence[int],
        verdict: Callable[[Loss, str, str], Outcome],
    ) -> None:
        """Send what can be sent, wait for the reports, and report what was lost."""
        try:
            session.post(call, first)
            in_time = call.accounted.done() or await self._await(session, call)
            if call.losses:
                if any(loss.harms_session for loss in call.losses.values()):
                    self._give_up(session)
                unreachable, unavailable_partitions = session.unreachable, _ALL_AVAILABLE
                if not in_time and not unreachable:
                    unreachable, unavailable_partitions = await self._find_unavailable(call)
                self._learn(call)
                call.decide(
                    lambda record, loss: verdict(
                        loss,
                        unreachable,
                        unavailable_partitions.get(
                            (self._settings.topic_of(record), loss.partition), ""
                        ),
                    )
                )
        except BaseException:
            call.abandon()
            self._give_up(session)
            raise
        finally:
            session.withdraw(call)

    async def _await(self, session: Session, call: PublishCall) -> bool:
        """Wait until every record is accounted for; False if only the end of the session
        made it so.
        """
        done, _ = await asyncio.wait([call.accounted], timeout=self._settings.publish_seconds)
        if done:
            return True
        self._give_up(session)
        try:
            await self._topics.ask()
        except UnreachableError as unreachable:
            session.end(str(unreachable))
        else:
            session.give_up(call)
        await call.accounted
        return False

    async def _find_unavailable(self, call: PublishCall) -> tuple[str, Unavailable]:
        """Return which partitions of the lost records cannot accept messages, while others can.

        The text is set if the cluster does not answer: then it is not the fault of any event.
        """
        topic_of = self._settings.topic_of
        places = {(topic_of(record), loss.partition) for record, loss in call.lost()}
        try:
            return "", await self._topics.unavailable_partitions(places)
        except UnreachableError as unreachable:
            return str(unreachable), _ALL_AVAILABLE

    def _learn(self, call: PublishCall) -> None:
        """Remember what the broker refused."""
        refused: set[str] = set()
        for record, loss in call.lost():
            topic = self._settings.topic_of(record)
            if loss.code in verdicts.WRONG_TOPIC:
                self._topics.refuse(topic, loss.error)
            elif loss.code in verdicts.REFUSED and len(call.records) > 1:
                refused.add(topic)
        for topic in refused:
            # For a while each of its messages is sent in its own batch: this finds the refused
            # message even in the middle of its key, and no other message is refused with it.
            self._topics.forget(topic)
            self._caution[topic] = self._caution.get(topic, Caution()).again(monotonic())

    # -- sessions -----------------------------------------------------------------------------
    def _size_for(self, topic: str) -> int:
        caution = self._caution.get(topic)
        if caution is not None and monotonic() < caution.until:
            return ONE_BY_ONE
        size = self._topics.batch_bytes(topic)
        if size == self._settings.batch_bytes:
            return size
        step = 1
        while step * _STEP <= size:
            step *= _STEP
        return step

    def _new(self, size: int) -> Session:
        careful = size == ONE_BY_ONE
        most = self._settings.batch_bytes if careful else size
        batching = self._settings.batching(most, one_by_one=careful)
        config = {**self._settings.producer(), **batching}
        return Session(config, self._write, self._lines, self._check_suspect)

    def _usable(self, use: Use, size: int) -> Session | None:
        session = self._used.get((use, size))
        if session is None:
            return None
        if session.retired:
            self._give_up(session)
            return None
        return session

    def _give_up(self, session: Session) -> None:
        """Retire this session; it ends when its calls have ended."""
        self._used = {use: one for use, one in self._used.items() if one is not session}
        self._ending = {one for one in self._ending if not one.is_gone} | {session}
        session.retire(GRACE_SECONDS)

    def _check_suspect(self, session: Session) -> None:
        """A session has lost all its brokers: find out whether they are unreachable."""
        if session.calls:
            chore = asyncio.create_task(self._look_after(session))
            self._chores.add(chore)
            chore.add_done_callback(self._chores.discard)

    async def _look_after(self, session: Session) -> None:
        try:
            await self._topics.ask()
        except UnreachableError as unreachable:
            session.end(str(unreachable))
        else:
            session.suspect = False
