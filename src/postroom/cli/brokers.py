"""What the doctor asks of destinations: whether they answer, and keep what they confirm."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from postroom.broker import Broker
from postroom.cli.exits import one_line
from postroom.codec import MAX_PAYLOAD_BYTES
from postroom.config import RelaySettings
from postroom.errors import ConfigError
from postroom.record import short_error
from postroom.stores.findings import Finding
from postroom.url import Url
from postroom.wiring import load_broker

if TYPE_CHECKING:
    from postroom.brokers.kafka import KafkaBroker
    from postroom.brokers.kafka.topics import Standing

_PATIENCE_SECONDS = 15.0


async def check_broker(
    url: Url, settings: RelaySettings, topics: Collection[str] = ()
) -> list[Finding]:
    """Ask whether the destination answers, whether the largest event fits, and how safe it is."""
    if url.scheme == "handlers":
        sys.path.insert(0, ".")
    try:
        broker = load_broker(url)
    except ConfigError as error:
        why = "no relay starts with this destination"
        return [Finding("error", f"{url}: {error}", why, "correct the URL")]
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await broker.open()
            await broker.health()
            found = list(_judge_limit(broker, url))
            if url.scheme == "kafka":
                found += await check_kafka(broker, topics)  # type: ignore[arg-type]
            return found
    except Exception as error:
        return [
            Finding(
                "warning",
                f"{url} does not answer: {one_line(short_error(error))}",
                f"events of stream {settings.stream} wait until it is back",
                "see the broker; the relay connects by itself",
            )
        ]
    finally:
        with suppress(Exception):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await broker.close()


def _judge_limit(broker: Broker, url: Url) -> Iterator[Finding]:
    limit = broker.capabilities.max_bytes
    if limit is not None and limit < MAX_PAYLOAD_BYTES:
        yield Finding(
            "warning",
            f"{url} takes {limit:,} bytes; an event may have {MAX_PAYLOAD_BYTES:,}",
            "a larger event is rejected, and becomes a dead letter",
            "raise the limit of the broker, or keep payloads small",
        )


# -- Kafka ------------------------------------------------------------------------------------
async def check_kafka(broker: KafkaBroker, topics: Collection[str]) -> list[Finding]:
    """Look at the topics that events go to; none is created."""
    from postroom.brokers.kafka import KafkaBroker

    quiet = KafkaBroker.__new__(KafkaBroker)
    quiet._set_up(replace(broker.settings, create_topics=False, partitions=None, replication=None))
    names = {broker.settings.topic} if broker.settings.topic else set(topics)
    await quiet.open()
    try:
        standings = await quiet._there().topics.look(names) if names else {}
        found: list[Finding] = []
        for name in sorted(names):
            found += judge_topic(name, standings[name], creates=broker.settings.create_topics)
        return found
    finally:
        await quiet.close()


def judge_topic(name: str, standing: Standing, *, creates: bool = False) -> Iterator[Finding]:
    """Say what is odd about a topic (G2, K2)."""
    if standing.trouble:
        if not creates:
            yield Finding(
                "warning",
                f"topic {name!r}: {standing.trouble}",
                "its events wait, and an alarm is raised",
                f"kafka-topics.sh --create --topic {name} …, or let the relay see it",
            )
        return
    if standing.min_replicas < 2:
        yield Finding(
            "warning",
            f"topic {name!r} has min.insync.replicas={standing.min_replicas}",
            "a message that only one broker has counts as confirmed; with that broker it is lost",
            f"kafka-configs.sh --alter --topic {name} --add-config min.insync.replicas=2, with "
            "three replicas",
        )
    if standing.max_bytes is not None and standing.max_bytes < MAX_PAYLOAD_BYTES:
        yield Finding(
            "warning",
            f"topic {name!r} takes {standing.max_bytes:,} bytes; an event may have "
            f"{MAX_PAYLOAD_BYTES:,}",
            "a larger event is rejected, and becomes a dead letter",
            f"kafka-configs.sh --alter --topic {name} --add-config "
            f"max.message.bytes={MAX_PAYLOAD_BYTES + 100_000}",
        )
