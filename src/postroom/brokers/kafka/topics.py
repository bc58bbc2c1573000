"""The state of the cluster and its topics: cached, and refreshed rarely."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from postroom.brokers.kafka import error_codes
from postroom.brokers.kafka.log import LogLines
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.brokers.outages import UnreachableError

Key = TypeVar("Key")

GOOD_SECONDS = 60.0
BAD_SECONDS = 2.0  # events that wait for a topic go out soon after it was created
_TIMES = 3
_JUST_NOW_SECONDS = 0.5
_MARGIN = 0.9  # the part of a topic's limit that a batch may use


class TopicState(NamedTuple):
    """The state of a topic, and until when it is valid.

    trouble         why nothing can be sent to it; empty if it can
    max_bytes       the largest batch it accepts; None without permission to read it
    min_replicas    how many replicas must have a message
    """

    trouble: str
    until: float
    max_bytes: int | None = None
    min_replicas: int = 1


class Topics:
    """Queries the cluster. Every request has a time limit; no answer raises UnreachableError.

    answered_at      when the cluster last answered, on the monotonic clock
    is_unreachable   the last request had no answer
    brokers          of the cluster, when it was last asked; 0 before
    """

    def __init__(self, settings: KafkaSettings, lines: LogLines) -> None:
        self._settings = settings
        self._known: dict[str, TopicState] = {}
        self._partitions: dict[str, int] = {}  # how many, also of topics in trouble
        self._asking = asyncio.Lock()
        self._error = ""  # the client's last message about its connections
        self._reason = ""  # why the last request had no answer
        self._unreachable_until = 0.0
        config: dict[str, Any] = {**settings.client(), "error_cb": self._noticed, "logger": lines}
        self._admin: AdminClient | None = AdminClient(config)
        self.answered_at = float("-inf")
        self.is_unreachable = False
        self.brokers = 0

    async def close(self) -> None:
        held, self._admin = [self._admin], None
        # With a dead broker, dropping the last reference may take long: not on the event loop.
        await asyncio.to_thread(held.clear)

    def listen(self) -> None:
        """Process the client's events, so that they do not pile up."""
        if self._admin is not None:
            self._admin.poll(0)

    # -- questions ----------------------------------------------------------------------------
    async def ask(self) -> None:
        """Return if the cluster answers. Also refreshes the list of brokers.

        An unresponsive broker may be asked first; its connection is then dropped, and another is
        asked.
        """
        admin = self._client()
        known = next((name for name, topic in self._known.items() if not topic.trouble), None)
        reason = ""
        for _ in range(_TIMES):
            try:
                there = await asyncio.to_thread(admin.list_topics, known, self._patience / _TIMES)
            except KafkaException as error:
                reason = error.args[0].str()
            else:
                self.brokers = len(there.brokers)
                self._answered()
                return
        raise self._unreachable(reason)

    async def look(self, names: Collection[str]) -> Mapping[str, TopicState]:
        """Return the state of these topics; queries those that are unknown or outdated."""
        now = monotonic()
        known = self._known
        if any(name not in known or known[name].until < now for name in names):
            async with self._asking:
                if self._unreachable_until > monotonic():  # an earlier caller has just found out
                    raise UnreachableError(self._reason)
                old = [n for n in names if n not in known or known[n].until < monotonic()]
                if old:
                    await self._refresh(old)
        return known

    def batch_bytes(self, name: str) -> int:
        """Return the maximum batch size for this topic (K2)."""
        standing, most = self._known.get(name), self._settings.batch_bytes
        if standing is None or standing.max_bytes is None:
            return most
        return max(1, min(most, int(standing.max_bytes * _MARGIN)))

    def partitions(self, name: str) -> int:
        """Return the number of partitions of a topic; 0 if it is unknown."""
        return self._partitions.get(name, 0)

    def refuse(self, name: str, trouble: str) -> None:
        """The broker refused a message for this topic: do not try again for a while."""
        self._known[name] = TopicState(trouble, monotonic() + BAD_SECONDS)

    def forget(self, name: str) -> None:
        """The cached state of this topic is no longer valid."""
        self._known.pop(name, None)

    async def unavailable_partitions(
        self, places: Iterable[tuple[str, int | None]]
    ) -> Mapping[tuple[str, int | None], str]:
        """Return which of these partitions cannot accept messages now, and why."""
        places = set(places)
        found: dict[tuple[str, int | None], str] = {}
        described = await self._refresh({name for name, _ in places})
        for name, topic in described.items():
            standing = self._known[name]
            if standing.trouble:
                found |= {place: standing.trouble for place in places if place[0] == name}
                continue
            for partition in topic.partitions:
                where = f"partition {partition.id} of {name!r}"
                if partition.leader is None:
                    found[name, partition.id] = f"{where} has no leader"
                elif len(partition.isr) < min(standing.min_replicas, len(partition.replicas)):
                    found[name, partition.id] = (
                        f"{where} has {len(partition.isr)} in-sync replicas; min.insync.replicas "
                        f"requires {standing.min_replicas}"
                    )
        asked = [(name, n) for name, n in places - found.keys() if n is not None and n >= 0]
        for place in await self._silent(asked):
            found[place] = f"the leader of partition {place[1]} of {place[0]!r} does not answer"
        return found

    async def describe(self, names: Collection[str]) -> dict[str, Any]:
        """Return the description of each topic, or the KafkaError that was returned for it."""
        wanted = TopicCollection(list(names))
        return await self._answers(
            lambda: self._client().describe_topics(wanted, request_timeout=self._patience)
        )

    async def configs(self, names: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics that this user may read."""
        if not names:
            return {}
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        found = await self._answers(
            lambda: self._client().describe_configs(wanted, request_timeout=self._patience)
        )
        return {
            topic.name: {name: entry.value for name, entry in entries.items()}
            for topic, entries in found.items()
            if not isinstance(entries, KafkaError)
        }

    # -- inside -------------------------------------------------------------------------------
    @property
    def _patience(self) -> float:
        return self._settings.answer_seconds

    def _client(self) -> AdminClient:
        if self._admin is None:
            raise UnreachableError("the Kafka broker is closed")
        return self._admin

    def _noticed(self, error: KafkaError) -> None:
        if error.code() != error_codes.ALL_BROKERS_DOWN or not self._error:
            self._error = error.str()

    def _answered(self) -> None:
        self._error = ""
        self.answered_at = monotonic()
        self._unreachable_until = 0.0
        self.is_unreachable = False

    def _unreachable(self, reason: str) -> UnreachableError:
        self._client().poll(0)  # librdkafka reports there why connections fail
        said = f"Kafka does not answer: {self._error or reason or 'no answer in time'}"
        self._reason = self._settings.mask(said)
        self._unreachable_until = monotonic() + _JUST_NOW_SECONDS
        self.is_unreachable = True
        return UnreachableError(self._reason)

    async def _answers(self, ask: Callable[[], Mapping[Key, Future[Any]]]) -> dict[Key, Any]:
        """Send several requests; a broker's error for one of them is its answer.

        Such requests go to the controller. If it is unresponsive, the cluster has elected another,
        which the client learns only by refreshing its metadata.
        """
        found, reason = await self._try(ask())
        if reason:
            await self.ask()
            found, reason = await self._try(ask())
        if reason:
            raise self._unreachable(reason)
        self._answered()
        return found

    async def _try(self, asked: Mapping[Key, Future[Any]]) -> tuple[dict[Key, Any], str]:
        """Wait for answers. The text is the reason why some requests have none."""
        found: dict[Key, Any] = {}
        reason = ""
        for thing, future in asked.items():
            try:
                async with asyncio.timeout(self._patience + 1):
                    found[thing] = await asyncio.wrap_future(future)
            except KafkaException as error:
                found[thing] = error.args[0]
                if found[thing].code() < KafkaError.UNKNOWN:  # an error raised by the client
                    reason = found[thing].str()
            except TimeoutError:
                reason = "no answer"
        return found, reason

    async def _refresh(self, names: Collection[str]) -> dict[str, Any]:
        found = await self.describe(names)
        missing = [n for n, topic in found.items() if _is(topic, KafkaError.UNKNOWN_TOPIC_OR_PART)]
        if missing and self._settings.create_topics:
            found |= await self._create(missing)
        there = [name for name, topic in found.items() if not isinstance(topic, KafkaError)]
        numbers = await self._configured(there)
        now = monotonic()
        for name, topic in found.items():
            if isinstance(topic, KafkaError):
                self._known[name] = TopicState(_trouble(name, topic), now + BAD_SECONDS)
                continue
            self._partitions[name] = len(topic.partitions)
            max_bytes, min_replicas = numbers.get(name, (None, 1))
            self._known[name] = TopicState("", now + GOOD_SECONDS, max_bytes, min_replicas)
        return found

    async def _create(self, names: Collection[str]) -> dict[str, Any]:
        """Create topics, and return their descriptions as soon as they exist."""
        settings = self._settings
        wanted = [
            NewTopic(name, settings.partitions or -1, settings.replication or -1) for name in names
        ]
        made = await self._answers(
            lambda: self._client().create_topics(wanted, request_timeout=self._patience)
        )
        failed = {
            name: error
            for name, error in made.items()
            if error is not None and not _is(error, KafkaError.TOPIC_ALREADY_EXISTS)
        }
        fresh = [name for name in names if name not in failed]
        found: dict[str, Any] = dict(failed)
        deadline = monotonic() + self._patience
        while fresh:
            found |= await self.describe(fresh)
            fresh = [n for n in fresh if isinstance(found[n], KafkaError)]
            if not fresh or monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        return found

    async def _configured(self, names: Collection[str]) -> dict[str, tuple[int, int]]:
        """Return max.message.bytes and min.insync.replicas, if this user may read them."""
        return {
            name: (int(config["max.message.bytes"]), int(config["min.insync.replicas"]))
            for name, config in (await self.configs(names)).items()
        }

    async def _silent(self, places: Collection[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return the partitions whose leader does not answer."""
        if not places:
            return []
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(name, number): latest for name, number in places}
        found, _ = await self._try(
            self._client().list_offsets(wanted, request_timeout=self._patience)
        )
        answered = {
            (place.topic, place.partition)
            for place, answer in found.items()
            if not isinstance(answer, KafkaError) or answer.code() >= KafkaError.UNKNOWN
        }
        return [place for place in places if place not in answered]


def _is(answer: object, code: int) -> bool:
    return isinstance(answer, KafkaError) and answer.code() == code


def _trouble(name: str, error: KafkaError) -> str:
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return f"Kafka has no topic {name!r}: create it, or set create_topics"
    return f"topic {name!r}: {error.str()}"
