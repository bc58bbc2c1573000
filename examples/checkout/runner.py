"""The runner service: reads Kafka and ships each order once, however often its event arrives.

The inbox row of the event is written in the transaction that ships the order. The runner commits
its offset after that transaction: if it dies in between, it reads the event again, and the inbox
reports it as done.
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

from examples.places import servers_of
from postroom import SyncInbox, read_headers

inbox = SyncInbox("runner")


@dataclass(frozen=True)
class Arrived:
    """The attributes of a message that the inbox needs."""

    id: str
    type: str
    correlation_id: str | None


def read(message: Message) -> Arrived:
    """Read postroom's headers of a Kafka message."""
    headers: Any = message.headers() or []
    envelope = read_headers({name: value.decode() for name, value in headers})
    return Arrived(envelope.id or "", envelope.type or "", envelope.correlation_id)


class Runner:
    """Reads messages until it is stopped.

    shipped     number of orders shipped
    repeats     number of messages that were processed before
    """

    def __init__(self, servers: str, topic: str, mongo_url: str) -> None:
        self.shipped = 0
        self.repeats = 0
        self._going = True
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._mongo_url = mongo_url

    def run(self) -> None:
        """Handle messages one by one."""
        with MongoClient[Any](self._mongo_url) as client:
            self._consumer.subscribe([self._topic])
            while self._going:
                message = self._consumer.poll(0.2)
                if message is None or message.error() is not None:
                    continue  # Kafka is unreachable, or the topic does not exist yet: keep polling
                if self.handle(client, message):
                    self.shipped += 1
                else:
                    self.repeats += 1
                self._consumer.commit(message, asynchronous=True)
        self._consumer.close()

    def handle(self, client: MongoClient[Any], message: Message) -> bool:
        """Ship an order, unless it was shipped before."""
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
        """Stop after the current message."""
        self._going = False


@contextmanager
def running(kafka_url: str, topic: str, mongo_url: str) -> Iterator[Runner]:
    """Run a runner in a thread for the duration of the block."""
    runner = Runner(servers_of(kafka_url), topic, mongo_url)
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        yield runner
    finally:
        runner.stop()
        thread.join()
