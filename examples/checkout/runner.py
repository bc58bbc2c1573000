"""The runner service: reads Kafka, ships each order once, however often its event arrives.

The inbox remembers the event in the transaction that ships the order. Only after that commit the
runner tells Kafka how far it has read: a runner that dies in between reads the event again, and the
inbox says that it was done.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Message
from pymongo import MongoClient

from postroom import SyncInbox
from postroom.model.envelope import read_headers

inbox = SyncInbox("runner")


@dataclass(frozen=True)
class Arrived:
    """What the inbox wants to know of a message."""

    id: str
    type: str
    correlation_id: str | None


def read(message: Message) -> Arrived:
    """Read our headers from a message of Kafka."""
    headers: Any = message.headers() or []
    envelope = read_headers({name: value.decode() for name, value in headers})
    return Arrived(envelope.id or "", envelope.type or "", envelope.correlation_id)


class Runner:
    """Reads until it is told to stop.

    shipped     how many orders it has shipped
    repeats     how many messages it had seen before
    """

    def __init__(self, servers: str, mongo_url: str) -> None:
        self.shipped = 0
        self.repeats = 0
        self._going = True
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "runner",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        self._mongo_url = mongo_url

    def run(self) -> None:
        """Take message after message."""
        with MongoClient[Any](self._mongo_url) as client:
            self._consumer.subscribe(["outbox_events"])
            while self._going:
                message = self._consumer.poll(0.2)
                if message is None or message.error() is not None:
                    continue  # Kafka is away, or the topic is not there yet: both will pass
                if self.handle(client, message):
                    self.shipped += 1
                else:
                    self.repeats += 1
                self._consumer.commit(message, asynchronous=True)
        self._consumer.close()

    def handle(self, client: MongoClient[Any], message: Message) -> bool:
        """Ship an order, unless that was done before."""
        shipments = client.get_default_database()["shipments"]
        order = json.loads(message.value() or b"")["order"]

        def ship(session: Any) -> bool:
            if not inbox.accept(session, read(message)):
                return False
            shipments.insert_one({"order": order}, session=session)
            return True

        with client.start_session() as session:
            return session.with_transaction(ship)

    def stop(self) -> None:
        """End after the message at hand."""
        self._going = False


@contextmanager
def running(servers: str, mongo_url: str) -> Iterator[Runner]:
    """Run a runner beside what is done inside."""
    runner = Runner(servers, mongo_url)
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        yield runner
    finally:
        runner.stop()
        thread.join()
