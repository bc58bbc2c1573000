"""omni-box: the head of each key at a time keeps the order; done rows are kept."""

import logging
from uuid import NAMESPACE_OID, uuid5

import structlog
from omni_box import OmniBoxDomainService, OutboxPublisher
from omni_box.core.converters import EnvelopeEventConverter
from omni_box.core.protocols import EventPublisher
from omni_box.infra.storage.postgres import PostgresOutboxRepository
from omni_box.infra.storage.postgres.orm import OutboxEventDBBase
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase

from bench.peers.scripts.stage import TOPIC, play, producer

STEP = 500


class Base(DeclarativeBase):
    pass


class OutboxEventDB(OutboxEventDBBase, Base):
    pass


class Publisher(EventPublisher):
    def __init__(self, seen, kafka):
        self._seen = seen
        self._to_kafka = None
        if kafka:
            from omni_box.infra.brokers.kafka import KafkaEventPublisher

            self._to_kafka = KafkaEventPublisher(kafka, EnvelopeEventConverter())

    async def publish(self, event, repo):
        if self._to_kafka:
            await self._to_kafka.publish(event, repo)
        self._seen(event)


def make(url):
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))


async def fill(url, events):
    engine, domain = make(url), OmniBoxDomainService()
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with async_sessionmaker(engine)() as session, session.begin():
        repo = PostgresOutboxRepository(session, model_class=OutboxEventDB)
        for at in range(0, len(events), STEP):
            made = [
                domain.create_outbox_event(
                    aggregate_type="bench", aggregate_id=uuid5(NAMESPACE_OID, key),
                    event_type="bench", topic=TOPIC, partition_key=key, payload=payload,
                )
                for key, payload in events[at : at + STEP]
            ]  # fmt: skip
            await repo.bulk_create(made)
    await engine.dispose()


async def drain(url, seen, batch, servers=None):
    engine = make(url)
    sessions = async_sessionmaker(engine)
    async with producer(servers) as kafka:
        publisher = Publisher(seen, kafka)
        while not seen.enough:
            async with sessions() as session, session.begin():
                repo = PostgresOutboxRepository(session, model_class=OutboxEventDB)
                outbox = OutboxPublisher(repo, publisher)
                await outbox.publish_batch(worker_id="w", batch_size=batch)
    await engine.dispose()


if __name__ == "__main__":
    play(fill, drain, lambda event: event.payload)
