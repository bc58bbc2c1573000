"""Kafka as a destination: publishing that survives anything, and says honestly what it knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Literal

from postroom.broker import UNSENT, BrokerCapabilities, Desk, Outcome, Verdict
from postroom.brokers.kafka import verdicts
from postroom.brokers.kafka.log import LogLines
from postroom.brokers.kafka.message import MOST_BESIDES, writer
from postroom.brokers.kafka.parcel import Parcel
from postroom.brokers.kafka.session import Session
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.brokers.kafka.topics import AwayError, Standing, Topics
from postroom.brokers.kafka.verdicts import Loss
from postroom.record import Record
from postroom.url import Url

GRACE_SECONDS = 3.0
CLOSE_SECONDS = 5.0
CAUTION_SECONDS = 60.0
_JUST_NOW_SECONDS = 1.0


class KafkaBroker:
    """Sends events to Kafka: idempotent, acks=all, gapless, in order by key.

    servers             host:port, several with commas between them
    topic               send everything there; otherwise each event goes to its own topic
    key                 `key` keeps the order of each key; `id` spreads single events (no order)
    compression         snappy, lz4, zstd, gzip or none
    create_topics       create a topic that is not there, with so many `partitions` and
                        `replication`, or the broker's defaults
    linger_seconds      how long a message waits for others to share its batch
    batch_bytes         the largest batch; it is smaller still where a topic's limit asks for it
    publish_seconds     after so long without a confirm a message is given up, and purged
    answer_seconds      how long a question to the cluster waits for its answer
    delivery            `transactional` sends the events of each lane in a transaction of its own
    transactional_prefix    begins the transactional ids
    cloudevents         a `source`: adds the attributes of CloudEvents in binary mode
    config              settings of librdkafka, for TLS, SASL and the like
    """

    def __init__(
        self,
        servers: str,
        *,
        topic: str | None = None,
        key: Literal["key", "id"] = "key",
        compression: str = "snappy",
        create_topics: bool = False,
        partitions: int | None = None,
        replication: int | None = None,
        linger_seconds: float = 0.001,
        batch_bytes: int = 500_000,
        publish_seconds: float = 15.0,
        answer_seconds: float = 3.0,
        delivery: Literal["idempotent", "transactional"] = "idempotent",
        transactional_prefix: str = "postroom",
        cloudevents: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._set_up(
            KafkaSettings(
                servers=servers,
                topic=topic,
                key=key,
                compression=compression,
                create_topics=create_topics,
                partitions=partitions,
                replication=replication,
                linger_seconds=linger_seconds,
                batch_bytes=batch_bytes,
                publish_seconds=publish_seconds,
                answer_seconds=answer_seconds,
                delivery=delivery,
                transactional_prefix=transactional_prefix,
                cloudevents=cloudevents,
                config=dict(config or {}),
            )
        )

    def _set_up(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._write = writer(settings)
        self._lines = LogLines(settings)
        self._topics: Topics | None = None
        self._sessions: dict[str, Session] = {}
        self._ending: set[Session] = set()
        self._chores: set[asyncio.Task[None]] = set()
        self._one_suspect = asyncio.Lock()
        self._careful_until = 0.0

    @classmethod
    def from_url(cls, url: Url) -> KafkaBroker:
        """Make one from `kafka://host:9092,host:9092?topic=…&compression=…`."""
        self = cls.__new__(cls)
        self._set_up(KafkaSettings.from_url(url))
        return self

    def __repr__(self) -> str:
        return f"KafkaBroker({self.settings.shown()})"

    # -- life ---------------------------------------------------------------------------------
    @property
    def capabilities(self) -> BrokerCapabilities:
        return BrokerCapabilities(transactional=self.settings.delivery == "transactional")

    async def open(self) -> None:
        if self._topics is None:
            self._topics = Topics(self.settings)

    async def close(self) -> None:
        topics, self._topics = self._topics, None
        for chore in list(self._chores):
            chore.cancel()
        for session in list(self._sessions.values()):
            self._discard(session)
            session.end()
        sessions, self._ending = self._ending, set()
        for session in sessions:
            await session.gone(CLOSE_SECONDS)
        if topics is not None:
            await topics.close()

    async def health(self) -> None:
        await self._open_topics().ask()

    # -- publishing ---------------------------------------------------------------------------
    async def publish(self, batch: Sequence[Record], desk: Desk) -> None:
        if not batch:
            return
        fixed = self.settings.topic
        names = {fixed} if fixed else {record.topic for record in batch}
        try:
            topics = self._open_topics()
            known = await topics.look(names)
            session = await self._session("batch", careful=monotonic() < self._careful_until)
        except AwayError as away:
            report_outage(batch, desk, str(away))
            return
        parcel = Parcel(batch, desk)
        refusal = self._refusal(batch, {name: known[name] for name in names}, desk.outbox_id)
        first = parcel.plan(self._topic_of if len(names) > 1 else None, refusal)
        await self._deliver(session, parcel, first, verdicts.in_a_batch)

    async def publish_alone(self, record: Record, desk: Desk) -> None:
        async with self._one_suspect:
            name = self._topic_of(record)
            try:
                standing = (await self._open_topics().look([name]))[name]
                session = await self._session("alone", careful=True)
            except AwayError as away:
                report_outage([record], desk, str(away))
                return
            if standing.trouble:
                desk.report(record, Outcome(Verdict.MISCONFIGURED, standing.trouble))
                return
            await self._deliver(session, Parcel([record], desk), [0], verdicts.alone)

    async def _deliver(
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
                self._discard(session)
                ailing = {} if in_time else await self._ailing(parcel)
                self._learn(parcel)
                parcel.judge(
                    lambda record, loss: verdict(
                        loss,
                        session.away,
                        ailing.get((self._topic_of(record), loss.partition), ""),
                    )
                )
        except BaseException:
            parcel.abandon()
            self._discard(session)
            raise
        finally:
            session.withdraw(parcel)

    async def _await(self, session: Session, parcel: Parcel) -> bool:
        """Wait until all is accounted for; False if only the end of the session made it so."""
        done, _ = await asyncio.wait([parcel.accounted], timeout=self.settings.publish_seconds)
        if done:
            return True
        self._discard(session)
        try:
            await self._open_topics().ask()
        except AwayError as away:
            session.end(str(away))
        else:
            session.give_up(parcel)
        await parcel.accounted
        return False

    # -- sessions -----------------------------------------------------------------------------
    async def _session(self, name: str, *, careful: bool) -> Session:
        """Return the session in use, or a new one, once it is known that somebody is there."""
        topics = self._open_topics()
        session = self._usable(name, careful=careful)
        if session is None:
            if monotonic() - topics.answered_at > _JUST_NOW_SECONDS:
                await topics.ask()
                session = self._usable(name, careful=careful)
        elif session.shaken:
            await topics.ask()
            session.shaken = False
            session = self._usable(name, careful=careful)
        if session is None:
            batching = self.settings.batching(topics.batch_bytes, one_by_one=careful)
            session = Session(
                {**self.settings.producer(), **batching}, self._write, self._lines, self._shaken
            )
            self._sessions[name] = session
        return session

    def _usable(self, name: str, *, careful: bool) -> Session | None:
        session = self._sessions.get(name)
        if session is None:
            return None
        too_large = session.batch_bytes > self._open_topics().batch_bytes
        if session.retired or session.careful != careful or too_large:
            self._discard(session)
            return None
        return session

    def _discard(self, session: Session) -> None:
        """Use this session no more; it ends when its calls have ended."""
        for name, used in list(self._sessions.items()):
            if used is session:
                del self._sessions[name]
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
            await self._open_topics().ask()
        except AwayError as away:
            session.end(str(away))
        else:
            session.shaken = False

    # -- what is known ------------------------------------------------------------------------
    def _open_topics(self) -> Topics:
        if self._topics is None:
            raise AwayError("the Kafka broker is closed")
        return self._topics

    def _topic_of(self, record: Record) -> str:
        return self.settings.topic or record.topic

    def _refusal(
        self, batch: Sequence[Record], known: Mapping[str, Standing], outbox_id: str
    ) -> Callable[[Record], Outcome | None] | None:
        """Return what says why a record cannot go with the others; None if all of them can."""
        limits = [standing.max_bytes for standing in known.values() if standing.max_bytes]
        smallest = min(limits, default=None)
        fits = smallest is None or max(len(r.payload) for r in batch) + MOST_BESIDES <= smallest
        if fits and not any(standing.trouble for standing in known.values()):
            return None

        def refusal(record: Record) -> Outcome | None:
            standing = known[self._topic_of(record)]
            if standing.trouble:
                return Outcome(Verdict.MISCONFIGURED, standing.trouble)
            limit = standing.max_bytes
            if limit is None or len(record.payload) + MOST_BESIDES <= limit:
                return None
            size = self._write(record, outbox_id).size
            if size <= limit:
                return None
            # Compressed it may still fit: the broker decides, and nobody shares its batch (K2).
            return Outcome(
                Verdict.UNKNOWN, f"{size} bytes before compression; max.message.bytes is {limit}"
            )

        return refusal

    async def _ailing(self, parcel: Parcel) -> Mapping[tuple[str, int | None], str]:
        """Return which partitions of what was lost cannot take messages, while others can."""
        places = {(self._topic_of(record), loss.partition) for record, loss in parcel.lost()}
        try:
            return await self._open_topics().ailing(places)
        except AwayError:
            return {}

    def _learn(self, parcel: Parcel) -> None:
        """Remember what the broker would not have."""
        for record, loss in parcel.lost():
            if loss.code in verdicts.WRONG_TOPIC:
                self._open_topics().refuse(self._topic_of(record), loss.error)
            elif loss.code in verdicts.REFUSED and len(parcel.records) > 1:
                self._open_topics().forget(self._topic_of(record))
                self._careful_until = monotonic() + CAUTION_SECONDS


def report_outage(batch: Sequence[Record], desk: Desk, error: str) -> None:
    """Nothing has left. The first of each key says why; the others stay behind it."""
    outage = Outcome(Verdict.OUTAGE, error)
    told: set[bytes] = set()
    for record in batch:
        desk.report(record, UNSENT if record.key_hash in told else outage)
        told.add(record.key_hash)
