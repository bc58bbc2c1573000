"""The sessions in use, and what happens to the calls on them when something goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Literal

from postroom.broker import Outcome
from postroom.brokers.kafka import verdicts
from postroom.brokers.kafka.log import LogLines
from postroom.brokers.kafka.message import Writer
from postroom.brokers.kafka.parcel import Parcel
from postroom.brokers.kafka.session import Session
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.brokers.kafka.topics import AwayError, Topics
from postroom.brokers.kafka.verdicts import Loss

Use = Literal["batch", "alone"]
Ailing = Mapping[tuple[str, int | None], str]

GRACE_SECONDS = 3.0
CLOSE_SECONDS = 5.0
CAUTION_SECONDS = 60.0
_JUST_NOW_SECONDS = 1.0
_WELL: Ailing = {}


class Sessions:
    """One session for batches, and another for suspects, so that nothing shares their fate.

    After its first trouble a session is given up and the next call gets a new one. Calls that are
    still on the old one have a time of grace to end well.
    """

    def __init__(
        self, settings: KafkaSettings, topics: Topics, write: Writer, lines: LogLines
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._write = write
        self._lines = lines
        self._used: dict[Use, Session] = {}
        self._ending: set[Session] = set()
        self._chores: set[asyncio.Task[None]] = set()
        self._careful_until = 0.0

    def warm_up(self, use: Use) -> None:
        """Start a session before it is needed: its producer takes half a second to be ready."""
        self._used[use] = session = self._new(careful=use == "alone")
        session.shaken = True  # nobody has answered yet

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
    async def ready(self, use: Use) -> Session:
        """Return a session, once it is known that somebody is there. Raises AwayError."""
        careful = use == "alone" or monotonic() < self._careful_until
        session = self._usable(use, careful=careful)
        if session is None or session.shaken:
            if session is not None or self._topics.answered_at < monotonic() - _JUST_NOW_SECONDS:
                await self._topics.ask()
            if session is not None:
                session.shaken = False
            session = self._usable(use, careful=careful)
        if session is None:
            self._used[use] = session = self._new(careful=careful)
        return session

    async def deliver(
        self,
        session: Session,
        parcel: Parcel,
        first: Sequence[int],
        verdict: Callable[[Loss, str, str], Outcome],
    ) -> None:
        """Send what can go, wait for what becomes of it, and report what was lost."""
        try:
            session.post(parcel, first)
            in_time = parcel.accounted.done() or await self._await(session, parcel)
            if parcel.losses:
                if any(loss.harms_session for loss in parcel.losses.values()):
                    self._give_up(session)
                away, ailing = session.away, _WELL
                if not in_time and not away:
                    away, ailing = await self._ailing(parcel)
                self._learn(parcel)
                parcel.judge(
                    lambda record, loss: verdict(
                        loss,
                        away,
                        ailing.get((self._settings.topic_of(record), loss.partition), ""),
                    )
                )
        except BaseException:
            parcel.abandon()
            self._give_up(session)
            raise
        finally:
            session.withdraw(parcel)

    async def _await(self, session: Session, parcel: Parcel) -> bool:
        """Wait until all is accounted for; False if only the end of the session made it so."""
        done, _ = await asyncio.wait([parcel.accounted], timeout=self._settings.publish_seconds)
        if done:
            return True
        self._give_up(session)
        try:
            await self._topics.ask()
        except AwayError as away:
            session.end(str(away))
        else:
            session.give_up(parcel)
        await parcel.accounted
        return False

    async def _ailing(self, parcel: Parcel) -> tuple[str, Ailing]:
        """Return which partitions of what was lost cannot take messages, while others can.

        The text says why nobody answers that: then no event is to blame.
        """
        topic_of = self._settings.topic_of
        places = {(topic_of(record), loss.partition) for record, loss in parcel.lost()}
        try:
            return "", await self._topics.ailing(places)
        except AwayError as away:
            return str(away), _WELL

    def _learn(self, parcel: Parcel) -> None:
        """Remember what the broker would not have."""
        for record, loss in parcel.lost():
            topic = self._settings.topic_of(record)
            if loss.code in verdicts.WRONG_TOPIC:
                self._topics.refuse(topic, loss.error)
            elif loss.code in verdicts.REFUSED and len(parcel.records) > 1:
                # For a while each message has a batch of its own: so a culprit in the middle of
                # its key is found in one go, and nobody is refused for its sake.
                self._topics.forget(topic)
                self._careful_until = monotonic() + CAUTION_SECONDS

    # -- sessions -----------------------------------------------------------------------------
    def _new(self, *, careful: bool) -> Session:
        batching = self._settings.batching(self._topics.batch_bytes, one_by_one=careful)
        config = {**self._settings.producer(), **batching}
        return Session(config, self._write, self._lines, self._shaken)

    def _usable(self, use: Use, *, careful: bool) -> Session | None:
        session = self._used.get(use)
        if session is None:
            return None
        too_large = session.batch_bytes > self._topics.batch_bytes
        if session.retired or session.careful != careful or too_large:
            self._give_up(session)
            return None
        return session

    def _give_up(self, session: Session) -> None:
        """Use this session no more; it ends when its calls have ended."""
        self._used = {use: one for use, one in self._used.items() if one is not session}
        self._ending = {one for one in self._ending if not one.is_gone} | {session}
        session.retire(GRACE_SECONDS)

    def _shaken(self, session: Session) -> None:
        """A session has lost all its brokers: find out whether they are away for good."""
        if session.parcels:
            chore = asyncio.create_task(self._look_after(session))
            self._chores.add(chore)
            chore.add_done_callback(self._chores.discard)

    async def _look_after(self, session: Session) -> None:
        try:
            await self._topics.ask()
        except AwayError as away:
            session.end(str(away))
        else:
            session.shaken = False
