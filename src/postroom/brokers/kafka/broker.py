"""Kafka as a destination: idempotent publishing, with an outcome for every event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Unpack

from postroom.broker import Broker, BrokerCapabilities, Outcome, Reporter, Verdict
from postroom.brokers.kafka import verdicts
from postroom.brokers.kafka.lane_producers import LaneProducers
from postroom.brokers.kafka.log import LogLines
from postroom.brokers.kafka.message import MOST_BESIDES, Writer, writer
from postroom.brokers.kafka.partitions import Partitions, fixed_place
from postroom.brokers.kafka.publish_call import PublishCall
from postroom.brokers.kafka.sessions import Sessions
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.brokers.kafka.topics import Topics, TopicState
from postroom.brokers.kafka.verdicts import Loss
from postroom.brokers.outages import UnreachableError, report_outage
from postroom.model.diagnostics import Finding
from postroom.model.url import Url
from postroom.options import KafkaOptions
from postroom.record import Record

Refusal = Callable[[Record], Outcome | None]
Verdicts = Callable[[Loss, str, str], Outcome]

LISTEN_SECONDS = 5.0


class KafkaBroker(Broker):
    """Sends events to Kafka: idempotent, acks=all, gapless, in order by key.

    url       `kafka://user:password@host:9092,host:9092`
    options   those of KafkaSettings, by name or in the URL; one with a dot in its name, in the URL,
              goes to librdkafka
    """

    def __init__(self, url: str | Url | KafkaSettings, **options: Unpack[KafkaOptions]) -> None:
        self.settings = url if isinstance(url, KafkaSettings) else KafkaSettings.read(url, options)
        self._write = writer(self.settings, Partitions(self.settings, self._partitions_of))
        self._one_suspect = asyncio.Lock()
        self._cluster: _Cluster | None = None

    def __repr__(self) -> str:
        return f"KafkaBroker({self.settings.shown()})"

    # -- life ---------------------------------------------------------------------------------
    @property
    def capabilities(self) -> BrokerCapabilities:
        return BrokerCapabilities(transactional=self.settings.delivery == "transactional")

    async def open(self) -> None:
        if self._cluster is None:
            self._cluster = _Cluster(self.settings, self._write)

    async def close(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()

    async def health(self) -> None:
        await self._there().topics.ask()

    async def check(self, topics: Collection[str]) -> list[Finding]:
        from postroom.brokers.kafka.checks import examine

        return await examine(self.settings, topics)

    # -- publishing ---------------------------------------------------------------------------
    async def publish(self, batch: Sequence[Record], reporter: Reporter) -> None:
        if not batch:
            return
        fixed = self.settings.topic
        names = {fixed} if fixed else {record.topic for record in batch}
        try:
            cluster = self._there()
            known = await cluster.topics.look(names)
            if cluster.lanes is not None:
                await cluster.answers()
        except UnreachableError as unreachable:
            report_outage(batch, reporter, str(unreachable))
            return
        standings = {name: known[name] for name in names}
        refusal = self._refusal(batch, standings, reporter.outbox_id)
        if cluster.lanes is not None:
            await self._publish_lanes(cluster, batch, reporter, refusal)
            return
        parts = cluster.sessions.share_out(batch)
        if len(parts) == 1:
            await self._publish_part(cluster, *next(iter(parts.items())), reporter, refusal)
            return
        async with asyncio.TaskGroup() as group:
            for size, records in parts.items():
                group.create_task(self._publish_part(cluster, size, records, reporter, refusal))

    async def _publish_part(
        self,
        cluster: _Cluster,
        size: int,
        batch: Sequence[Record],
        reporter: Reporter,
        refusal: Refusal | None,
    ) -> None:
        """Send records in the session for batches of this size; no other session has any of their
        keys.
        """
        try:
            session = await cluster.sessions.ready("batch", size)
        except UnreachableError as unreachable:
            report_outage(batch, reporter, str(unreachable))
            return
        call = PublishCall(batch, reporter)
        first = call.plan(self._place_of(batch), refusal)
        await cluster.sessions.deliver(session, call, first, verdicts.in_a_batch)

    async def publish_alone(self, record: Record, reporter: Reporter) -> None:
        async with self._one_suspect:
            name = self.settings.topic_of(record)
            try:
                cluster = self._there()
                standing = (await cluster.topics.look([name]))[name]
                if cluster.lanes is not None:
                    await cluster.answers()
                session = None if cluster.lanes else await cluster.sessions.ready("alone")
            except UnreachableError as unreachable:
                report_outage([record], reporter, str(unreachable))
                return
            call = PublishCall([record], reporter)
            if standing.trouble:
                reporter.report(record, Outcome(Verdict.MISCONFIGURED, standing.trouble))
            elif session is None:
                await self._publish_lane(cluster, call, [0], verdicts.alone)
            else:
                await cluster.sessions.deliver(session, call, [0], verdicts.alone)

    # -- in transactions (K6) -----------------------------------------------------------------
    async def _publish_lanes(
        self,
        cluster: _Cluster,
        batch: Sequence[Record],
        reporter: Reporter,
        refusal: Refusal | None,
    ) -> None:
        by_lane: dict[tuple[str, int], list[Record]] = {}
        for record in batch:
            by_lane.setdefault((record.stream, record.lane), []).append(record)
        async with asyncio.TaskGroup() as group:
            for records in by_lane.values():
                call = PublishCall(records, reporter)
                first = call.plan(None, refusal)
                group.create_task(self._publish_lane(cluster, call, first, verdicts.in_a_batch))

    async def _publish_lane(
        self, cluster: _Cluster, call: PublishCall, first: Sequence[int], verdict: Verdicts
    ) -> None:
        if not first:
            return
        outbox_id = call.reporter.outbox_id
        record = call.records[0]
        messages = []
        for i in first:
            if call.records[i].key_hash in call.stopped:
                call.lose(i, verdicts.NEVER_LEFT)
                continue
            try:
                messages.append(self._write(call.records[i], outbox_id))
            except Exception as error:
                call.lose(i, verdicts.unwritable(error))
        first = [i for i in first if i not in call.losses]
        if not first:
            call.decide(lambda _, loss: verdict(loss, "", ""))
            return
        assert cluster.lanes is not None
        size = min(cluster.topics.batch_bytes(message.topic) for message in messages)
        receipts: dict[int, str] | None = {} if call.reporter.keeps_receipts else None
        try:
            losses = await cluster.lanes.send(
                outbox_id, record.stream, record.lane, messages, size, receipts
            )
        except BaseException:
            call.abandon()
            raise
        if losses is None:
            call.confirmed(
                first, [receipts.get(n, "") for n in range(len(first))] if receipts else ()
            )
            call.decide(lambda _, loss: verdict(loss, "", ""))
            return
        unreachable = await cluster.reason(losses)
        for i, loss in zip(first, losses, strict=True):
            call.lose(i, loss)
        call.decide(lambda _, loss: verdict(loss, unreachable, ""))

    # -- places -------------------------------------------------------------------------------
    def _place_of(self, batch: Sequence[Record]) -> Callable[[Record], str] | None:
        """Return the function that returns a record's place; None if each key has one place."""
        if any(record.options_json is not None for record in batch):
            return partial(fixed_place, self.settings)
        mixed = self.settings.topic is None and len({record.topic for record in batch}) > 1
        return self.settings.topic_of if mixed else None

    def _partitions_of(self, topic: str) -> int:
        return 0 if self._cluster is None else self._cluster.topics.partitions(topic)

    # -- state of the cluster -----------------------------------------------------------------
    def _there(self) -> _Cluster:
        if self._cluster is None:
            raise UnreachableError("the Kafka broker is closed")
        return self._cluster

    def _refusal(
        self, batch: Sequence[Record], known: Mapping[str, TopicState], outbox_id: str
    ) -> Refusal | None:
        """Return a function that returns why a record cannot be sent with the others; None
        if all can.
        """
        limits = [standing.max_bytes for standing in known.values() if standing.max_bytes]
        smallest = min(limits, default=None)
        fits = smallest is None or max(len(r.payload) for r in batch) + MOST_BESIDES <= smallest
        if fits and not any(standing.trouble for standing in known.values()):
            return None

        def refusal(record: Record) -> Outcome | None:
            standing = known[self.settings.topic_of(record)]
            if standing.trouble:
                return Outcome(Verdict.MISCONFIGURED, standing.trouble)
            limit = standing.max_bytes
            if limit is None or len(record.payload) + MOST_BESIDES <= limit:
                return None
            try:
                size = self._write(record, outbox_id).size
            except Exception as error:
                return verdicts.in_a_batch(verdicts.unwritable(error))
            if size <= limit:
                return None
            # Compressed it may still fit: the broker decides, and it is sent in its own batch (K2).
            return Outcome(
                Verdict.UNKNOWN, f"{size} bytes before compression; max.message.bytes is {limit}"
            )

        return refusal


class _Cluster:
    """The open connections to the cluster."""

    def __init__(self, settings: KafkaSettings, write: Writer) -> None:
        lines = LogLines(settings)
        self.topics = Topics(settings, lines)
        self.sessions = Sessions(settings, self.topics, write, lines)
        self.lanes = (
            LaneProducers(settings, lines) if settings.delivery == "transactional" else None
        )
        if self.lanes is None:
            self.sessions.warm_up()
        self._listening = asyncio.create_task(self._listen())

    async def close(self) -> None:
        self._listening.cancel()
        await self.sessions.close()
        if self.lanes is not None:
            await self.lanes.close()
        await self.topics.close()

    async def answers(self) -> None:
        """Return if the cluster is reachable, as far as known. Raises UnreachableError."""
        if self.topics.is_unreachable:
            await self.topics.ask()

    async def reason(self, losses: Sequence[Loss]) -> str:
        """Return why nothing can be sent at all, if so."""
        others = [loss for loss in losses if loss.verdict is None]
        if others and not others[0].left:
            return f"cannot begin a transaction: {others[0].error}"
        try:
            await self.topics.ask()
        except UnreachableError as unreachable:
            return str(unreachable)
        return ""

    async def _listen(self) -> None:
        while True:
            await asyncio.sleep(LISTEN_SECONDS)
            self.topics.listen()
            self.sessions.let_idle_go()
            if self.lanes is not None:
                self.lanes.listen()
