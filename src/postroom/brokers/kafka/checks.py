"""Checks of a Kafka cluster for `postroom doctor`. No topic is created.

The producer always uses `acks=all`; the topic's settings decide what that guarantees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

from postroom.brokers.kafka.log import LogLines
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.brokers.kafka.topics import Topics
from postroom.model.codec import MAX_PAYLOAD_BYTES
from postroom.model.diagnostics import Finding

_OVERHEAD = 100_000  # bytes for headers and for the frame of a batch


class Topic(NamedTuple):
    """The state of a topic.

    trouble     why nothing can be sent to it; empty if it can
    config      its settings; empty without permission to read them
    brokers     of its cluster: it can have no more replicas
    """

    trouble: str = ""
    replicas: int = 3
    config: Mapping[str, str] = {}
    brokers: int = 3


async def examine(settings: KafkaSettings, topics: Collection[str]) -> list[Finding]:
    """Check the topics that events go to. Raises UnreachableError if there is no answer."""
    looking = replace(settings, create_topics=False, partitions=None, replication=None)
    names = sorted({settings.topic} if settings.topic else set(topics))
    cluster = Topics(looking, LogLines(looking))
    try:
        await cluster.ask()
        seen = await _look(cluster, names)
    finally:
        await cluster.close()
    found = list(judge_keys(settings.key))
    for name in names:
        found += judge_topic(name, seen[name], creates=settings.create_topics)
    return found


async def _look(cluster: Topics, names: list[str]) -> dict[str, Topic]:
    if not names:
        return {}
    states = await cluster.look(names)
    brokers = cluster.brokers or Topic().brokers
    seen = {name: Topic(states[name].trouble, brokers=brokers) for name in names}
    there = [name for name in names if not seen[name].trouble]
    for name, described in (await cluster.describe(there)).items() if there else ():
        if not isinstance(described, KafkaError):
            fewest = min(len(partition.replicas) for partition in described.partitions)
            seen[name] = seen[name]._replace(replicas=fewest)
    for name, config in (await cluster.configs(there)).items():
        seen[name] = seen[name]._replace(config=config)
    return seen


def judge_keys(key: str) -> Iterator[Finding]:
    """With the event's id as the key, an aggregate is spread over all partitions (K7)."""
    if key == "id":
        yield Finding(
            "info", "the message key is the event's id (key=id)",
            "events of one aggregate go to different partitions, so their order is lost",
            "remove key=id if a consumer relies on the order of an aggregate",
        )  # fmt: skip


def judge_topic(name: str, topic: Topic, *, creates: bool = False) -> Iterator[Finding]:
    """Return the problems of a topic (G2, K2)."""
    if topic.trouble:
        if not creates:
            yield Finding(
                "warning", f"topic {name!r}: {topic.trouble}",
                "its events wait, and an alarm is raised",
                f"kafka-topics.sh --create --topic {name} --partitions 6 "
                f"--replication-factor {min(3, topic.brokers)}",
            )  # fmt: skip
        return
    yield from _check_safety(name, topic)
    yield from _check_retention(name, topic.config)
    limit = int(topic.config.get("max.message.bytes", MAX_PAYLOAD_BYTES))
    if limit < MAX_PAYLOAD_BYTES:
        yield Finding(
            "warning",
            f"topic {name!r} accepts {limit:,} bytes; an event may have up to "
            f"{MAX_PAYLOAD_BYTES:,}",
            "a larger event is rejected and becomes a dead letter",
            _alter(name, f"max.message.bytes={MAX_PAYLOAD_BYTES + _OVERHEAD}"),
        )


def _check_safety(name: str, topic: Topic) -> Iterator[Finding]:
    fewest = int(topic.config.get("min.insync.replicas", 2))
    if topic.brokers == 1 and fewest < 2:
        yield Finding(
            "info", f"topic {name!r} is in a cluster of one broker",
            "a confirmed event is lost if that broker loses its disk; good for development",
            "in production: three brokers, three replicas and min.insync.replicas=2",
        )  # fmt: skip
    elif topic.brokers == 1:
        yield Finding(
            "error",
            f"topic {name!r} has min.insync.replicas={fewest} in a cluster of one broker",
            "Kafka refuses every message, so its events wait",
            _alter(name, "min.insync.replicas=1") + ", or add brokers",
        )  # fmt: skip
    elif fewest < 2:
        yield Finding(
            "warning", f"topic {name!r} has min.insync.replicas={fewest}",
            "acks=all then means a single broker: a confirmed event is lost if that broker fails",
            _alter(name, "min.insync.replicas=2") + ", with three replicas",
        )  # fmt: skip
    elif topic.replicas < fewest:
        yield Finding(
            "error",
            f"topic {name!r} has {topic.replicas} replicas and min.insync.replicas={fewest}",
            "Kafka refuses every message, so its events wait", _reassign(name),
        )  # fmt: skip
    elif topic.replicas == fewest:
        yield Finding(
            "warning",
            f"topic {name!r} has {topic.replicas} replicas and min.insync.replicas={fewest}",
            "its events wait whenever a single broker is unreachable", _reassign(name),
        )  # fmt: skip
    if topic.config.get("unclean.leader.election.enable") == "true":
        yield Finding(
            "error", f"topic {name!r} has unclean.leader.election.enable=true",
            "a broker that lags behind can become the leader, and confirmed events are lost (G2)",
            _alter(name, "unclean.leader.election.enable=false"),
        )  # fmt: skip


def _check_retention(name: str, config: Mapping[str, Any]) -> Iterator[Finding]:
    if "compact" in str(config.get("cleanup.policy", "")):
        yield Finding(
            "warning", f"topic {name!r} is compacted",
            "only the last event of each key is guaranteed to be kept; a consumer that lags behind "
  "misses earlier ones",
            _alter(name, "cleanup.policy=delete"),
        )  # fmt: skip


def _alter(name: str, setting: str) -> str:
    return f"kafka-configs.sh --alter --topic {name} --add-config {setting}"


def _reassign(name: str) -> str:
    return f"kafka-reassign-partitions.sh: give {name} three replicas"
