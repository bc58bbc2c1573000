"""The partition of an event that names a partition or a partition key.

librdkafka chooses partitions by the message key only. For a partition key the choice is made here,
by the same function as the configured partitioner: other producers agree on the partition.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from postroom.brokers.kafka.settings import KafkaSettings
from postroom.errors import EventError
from postroom.record import PARTITION, PARTITION_KEY, Record

ANY = -1  # librdkafka chooses, by the message key
_MASK = 0xFFFFFFFF


class NoPartitionError(Exception):
    """The topic has no such partition."""


def fixed_place(settings: KafkaSettings, record: Record) -> str:
    """Return where a record goes, as text: its topic and, if it names one, its partition."""
    topic = settings.topic_of(record)
    if record.options_json is None:
        return topic
    options = record.options
    return f"{topic}\x00{options.get(PARTITION)}\x00{options.get(PARTITION_KEY)}"


class Partitions:
    """Chooses partitions for the events that do not leave the choice to librdkafka."""

    def __init__(self, settings: KafkaSettings, count: Callable[[str], int]) -> None:
        self._count = count  # of a topic's partitions
        self._hash = _HASHES.get(str(settings.producer()["partitioner"]))

    def of(self, topic: str, record: Record) -> int:
        """Return the partition. Raises NoPartitionError, and EventError for invalid options."""
        options = record.options
        number, key = options.get(PARTITION), options.get(PARTITION_KEY)
        if number is None and key is None:
            return ANY
        count = self._count(topic)
        if number is None:
            if not isinstance(key, str):
                raise EventError("partition_key", "must be text")
            if self._hash is None:  # a partitioner that chooses at random
                return ANY
            if count < 1:
                raise NoPartitionError(f"the number of partitions of {topic!r} is unknown")
            return self._hash(key.encode()) % count
        if type(number) is not int or number < 0:
            raise EventError("partition", "must be a whole number, 0 or more")
        if number >= count:
            raise NoPartitionError(
                f"the event is for partition {number}, but {topic!r} has {count} partitions: add "
                "partitions to the topic, or add the event again without one"
            )
        return number


def murmur2(data: bytes) -> int:
    """Return the hash of Java's default partitioner, without its sign."""
    m, length = 0x5BD1E995, len(data)
    h = 0x9747B28C ^ length
    for at in range(0, length - length % 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & _MASK
        h = (h * m & _MASK) ^ ((k ^ k >> 24) * m & _MASK)
    rest = data[length - length % 4 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & _MASK
    h = (h ^ h >> 13) * m & _MASK
    return (h ^ h >> 15) & 0x7FFFFFFF


def fnv1a(data: bytes) -> int:
    """Return the hash of Sarama's partitioner: the absolute value of a signed number."""
    h = 0x811C9DC5
    for byte in data:
        h = (h ^ byte) * 0x01000193 & _MASK
    return h if h < 2**31 else 2**32 - h


_HASHES: dict[str, Callable[[bytes], int]] = {
    "murmur2": murmur2,
    "murmur2_random": murmur2,
    "consistent": crc32,
    "consistent_random": crc32,
    "fnv1a": fnv1a,
    "fnv1a_random": fnv1a,
}
