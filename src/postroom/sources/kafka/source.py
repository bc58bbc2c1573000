"""Kafka as a source: a member of a consumer group, polled by its own thread.

The thread polls regardless of the handlers, so a slow handler never costs the membership: when
enough is in flight, partitions are paused and polling goes on. Offsets are committed after the
database has committed, and only up to the first unfinished message. A revoked partition is lost at
once: none of its messages is started, acknowledged or committed any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from postroom.errors import ConfigError
from postroom.model.diagnostics import Finding
from postroom.model.url import Url
from postroom.options import KafkaSourceOptions
from postroom.record import short_error
from postroom.source import SourceCapabilities, SourceConnection
from postroom.sources.kafka.cluster import group_lag
from postroom.sources.kafka.poller import Arrivals, KafkaDelivery, Poller
from postroom.sources.kafka.settings import KafkaSourceSettings

_log = logging.getLogger(__name__)
_MOST = 500  # messages returned at once
_ANSWER_SECONDS = 3.0
_HOPELESS = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION}
_CLOSE_SECONDS = 8.0  # less than a consumer waits for its source to close


class KafkaSource:
    """Consumes topics as a member of a group; `kafka://host:9092?topic=orders&group=payments`.

    Options are those of KafkaSourceSettings; one with a dot in its name goes to librdkafka.
    """

    def __init__(self, url: str | Url, **options: Unpack[KafkaSourceOptions]) -> None:
        self._url = Url.parse(url)
        self.settings = KafkaSourceSettings.read(self._url, options)
        self.capabilities = SourceCapabilities(offsets=True)
        self.name = self.settings.group
        self._arrivals = Arrivals()
        self._news = asyncio.Event()
        self._thread: Poller | None = None
        self.connection = SourceConnection()

    def __repr__(self) -> str:
        return f"KafkaSource({str(self._url)!r})"

    async def open(self) -> None:
        if self._thread is not None:
            return
        missing = await asyncio.to_thread(self._check_topics)
        await self._learn_retention()
        self._arrivals = Arrivals()
        self._news = asyncio.Event()
        loop = asyncio.get_running_loop()
        news = self._news
        self._thread = Poller(
            self.settings,
            self._arrivals,
            self.connection,
            lambda: loop.call_soon_threadsafe(news.set),
        )
        self._thread.missing.note(missing)
        self._thread.start()

    async def receive(self) -> Sequence[KafkaDelivery]:
        while not (taken := self._arrivals.take(_MOST)):
            await self._news.wait()
            self._news.clear()
        return [delivery for delivery in taken if not delivery.is_lost]

    async def pause(self) -> None:
        if self._thread is not None:
            self._thread.paused.set()

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.ending.set()
            await asyncio.to_thread(thread.join, _CLOSE_SECONDS)
            if thread.is_alive():  # it ends with the process
                _log.warning(
                    "Kafka did not answer before the consumer stopped. Messages whose "
                    "offsets were not committed are delivered again, and the inbox drops them"
                )
        self.connection.restored()  # no longer needed
        self.connection.accepted()

    async def health(self) -> None:
        """Request the brokers' topics; raises ConnectionError if there is no answer."""
        try:
            missing = await asyncio.to_thread(self._check_topics, must_answer=True)
        except ConfigError as error:
            raise ConnectionError(str(error)) from error
        if missing:
            raise ConnectionError(
                f"Kafka: the topic {missing[0]!r} cannot be consumed: it does not exist"
            )

    async def backlog(self) -> int:
        """Return the lag of the group over all partitions."""
        return await asyncio.to_thread(group_lag, self.settings)

    async def check(self) -> list[Finding]:
        await self.health()
        await self._learn_retention()
        return []

    async def _learn_retention(self) -> None:
        kept = await asyncio.to_thread(
            retention_seconds, self.settings.client(), self.settings.topic
        )
        self.capabilities = SourceCapabilities(offsets=True, redelivers_seconds=kept)

    def _check_topics(self, *, must_answer: bool = False) -> list[str]:
        """Return the topics that are missing; an unreachable cluster is not an error.

        Raises ConfigError for problems that waiting does not solve: no permission, a wrong name.
        """
        config = {**self.settings.client(), "log_level": 0}
        try:
            client = Client(config)
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigError(f"Kafka: {short_error(error)}") from None
        missing: list[str] = []
        try:
            for topic in self.settings.topic:
                found = client.list_topics(topic, timeout=_ANSWER_SECONDS).topics.get(topic)
                problem = None if found is None else found.error
                if problem is not None and problem.code() in _HOPELESS:
                    raise ConfigError(
                        f"Kafka: the topic {topic!r} cannot be consumed: {problem.str()}"
                    )
                if found is None or problem is not None:
                    missing.append(topic)
        except KafkaException as error:
            if must_answer:
                raise ConnectionError(f"Kafka does not answer: {short_error(error)}") from error
        finally:
            client.close()
        return missing


def retention_seconds(client: Mapping[str, Any], topics: Sequence[str]) -> float | None:
    """Return how long the topics keep messages at most; None if unknown."""
    own = ("bootstrap", "security", "sasl", "ssl", "client.id")
    admin = AdminClient({n: v for n, v in client.items() if n.startswith(own)} | {"log_level": 0})
    asked = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    longest = 0.0
    try:
        for answer in admin.describe_configs(asked, request_timeout=_ANSWER_SECONDS).values():
            kept = float(answer.result(_ANSWER_SECONDS)["retention.ms"].value)
            longest = max(longest, kept / 1_000 if kept >= 0 else float("inf"))
    except Exception:  # unreachable, or no permission
        return None
    return longest
