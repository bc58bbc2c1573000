"""A reader of the topic that does not use postroom, and checks its promises."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

LIFE = ("order.placed", "order.paid", "order.shipped")
WITHIN_SECONDS = 30.0


@dataclass
class Findings:
    """The events of each order, by first arrival, and the number of repeats."""

    by_order: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    repeats: int = 0

    @property
    def events(self) -> int:
        """The number of distinct events."""
        return sum(map(len, self.by_order.values()))

    @property
    def out_of_order(self) -> list[str]:
        """The orders whose events did not arrive in the order in which they happened."""
        return [
            order for order, kinds in self.by_order.items() if tuple(kinds) != LIFE[: len(kinds)]
        ]


def read_all(servers: str, topic: str, partitions: int) -> Findings:
    """Read the whole topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid4().hex,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(partitions)])
    found, seen, ended = Findings(), set(), set()
    try:
        while len(ended) < partitions:
            message = consumer.poll(WITHIN_SECONDS)
            if message is None:
                raise TimeoutError(f"nothing more of {topic} within {WITHIN_SECONDS:g} s")
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                    ended.add(message.partition())
                continue
            headers = {name: value.decode() for name, value in message.headers() or []}
            if headers["postroom-id"] in seen:
                found.repeats += 1
            else:
                seen.add(headers["postroom-id"])
                found.by_order[message.key().decode()].append(headers["postroom-type"])
    finally:
        consumer.close()
    return found
