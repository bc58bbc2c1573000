"""The thread that polls Kafka, and the messages that arrived but were not received yet."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import Consumer as Client

from postroom.brokers.kafka import error_codes
from postroom.model.incoming import BODY_BYTES, Incoming
from postroom.model.pauses import Pauses
from postroom.model.url import MASK, is_secret
from postroom.source import SourceConnection
from postroom.sources.kafka.cluster import Cluster, Generations
from postroom.sources.kafka.commits import Commits
from postroom.sources.kafka.message import incoming
from postroom.sources.kafka.missing_topics import MissingTopics
from postroom.sources.kafka.offsets import Partition
from postroom.sources.kafka.settings import KafkaSourceSettings
from postroom.sources.kafka.starts import Starts

_log = logging.getLogger("postroom.sources.kafka.source")
_POLL_SECONDS = 0.05
_MOST = 500  # messages returned at once
_ENOUGH, _ENOUGH_BYTES = 2_000, 16_000_000  # arrived and not received yet: partitions are paused
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_LONG_LIFE_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_STEADY_SECONDS = 5.0
_SETTLING_SECONDS = 2.0
_FINISH_SECONDS = 5.0
_LEAVE_PART = 0.4  # of a session: the last heartbeat may have been answered 3 s before the silence
_UNREACHABLE = {error_codes.ALL_BROKERS_DOWN, error_codes.AUTHENTICATION}
_UNREADABLE = {error_codes.BAD_COMPRESSION, error_codes.BAD_MSG}


class KafkaDelivery:
    """One record in flight."""

    __slots__ = ("_offset", "_partition", "message")

    def __init__(self, partition: Partition, offset: int, message: Incoming) -> None:
        self._partition = partition
        self._offset = offset
        self.message = message

    @property
    def is_lost(self) -> bool:
        return self._partition.is_lost

    def ack(self) -> None:
        self._partition.done(self._offset)


class Arrivals:
    """Messages that arrived and were not received yet.

    The thread adds them itself: it must know their number even while the event loop is busy.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[KafkaDelivery] = deque()
        self._bytes = 0

    @property
    def are_enough(self) -> bool:
        """Their number or size has reached the limit."""
        return len(self._waiting) >= _ENOUGH or self._bytes >= _ENOUGH_BYTES

    def put(self, deliveries: Sequence[KafkaDelivery]) -> None:
        size = sum(len(delivery.message.body) for delivery in deliveries)
        with self._lock:
            self._waiting.extend(deliveries)
            self._bytes += size

    def take(self, most: int) -> list[KafkaDelivery]:
        with self._lock:
            taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._bytes -= sum(len(delivery.message.body) for delivery in taken)
            return taken


class Poller(threading.Thread):
    """Polls, commits and rebalances; the only user of the client."""

    def __init__(
        self,
        options: KafkaSourceSettings,
        arrivals: Arrivals,
        connection: SourceConnection,
        tell: Callable[[], object],
    ) -> None:
        super().__init__(name=f"postroom-kafka-{options.group}", daemon=True)
        self.paused = threading.Event()
        self.ending = threading.Event()
        self._options = options
        self._arrivals = arrivals
        self._connection = connection
        self._tell = tell
        self._cluster = Cluster(options)
        self._generations = Generations(self._cluster)
        self._commits = Commits(connection)
        self._starts = Starts()
        self.missing = MissingTopics(connection)
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._told = ""  # the failure that was logged last
        self._looks_from = 0.0
        self._back_at = float("-inf")  # when the brokers were reachable again
        self._unanswered = 0  # commits
        self._has_left = False  # the group
        self._leave_seconds = options.session_seconds * _LEAVE_PART
        self._held_back: bool | None = False  # None: some are paused and some are not

    def run(self) -> None:
        pauses = Pauses(
            _FIRST_PAUSE, _LONGEST_PAUSE, steady_seconds=_LONG_LIFE_SECONDS, clock=monotonic
        )
        while not self.ending.is_set():
            pauses.connected()
            try:
                self._live()
            except Exception as error:  # a fatal error of the client: it must be replaced
                self._broken(str(error))
                self._lose(list(self._partitions))
                self.ending.wait(pauses.grow())

    def _live(self) -> None:
        config = {
            **self._options.client(),
            "on_commit": self._committed,
            "error_cb": self._failed,
        }
        client = Client(config, logger=_LogLines(self._options))
        self._unanswered, self._has_left = 0, False
        self._looks_from = monotonic() + _STEADY_SECONDS if self._told else 0.0
        try:
            self._subscribe(client)
            while not self.ending.is_set():
                self._hold_back(client)
                first = client.poll(_POLL_SECONDS)
                if first is not None:
                    self._hand_over(client, [first, *client.consume(_MOST - 1, 0)])
                if self.missing:
                    if self.missing.look(client):
                        self._subscribe(client)
                elif self._connection.trouble:
                    self._look_for_brokers(client)
                for topic, topic_id in self._generations.look(self._topics()).items():
                    self._begin_topic_again(client, topic, topic_id)
                if self._generations.is_silent:
                    self._unreachable("no answer to requests")
                    self._leave_in_time(client)
                self._unanswered += self._starts.commit(client)
                self._commit(client)
            self._finish(client)
        finally:
            self._lose(list(self._partitions))
            with suppress(Exception):
                client.close()

    def _subscribe(self, client: Client) -> None:
        """Join the group for the topics that exist."""
        topics = [topic for topic in self._options.topic if topic not in self.missing]
        if topics:
            client.subscribe(
                topics,
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._taken,
            )

    def _leave_in_time(self, client: Client) -> None:
        """Leave the group while the broker is silent, before librdkafka drops the membership.

        A frozen broker reads the requests of the past when it wakes up: a heartbeat revives this
        member, and the group would wait a whole session for it while its successor, this client
        with a new id, waits to join. The request to leave is read after the heartbeat.
        """
        if self._has_left or self.missing:  # with a missing topic another look decides
            return
        if self._generations.silent_seconds > self._leave_seconds:
            self._has_left = True
            _log.debug("leaving the group %s until Kafka answers", self._options.group)
            client.unsubscribe()

    # -- the connection -----------------------------------------------------------------------
    def _broken(self, why: str) -> None:
        """Record that the client has failed; logged once per reason."""
        if self._connection.lost(why) or why != self._told:
            _log.warning(
                "the Kafka consumer failed (postroom creates a new one, with backoff): %s", why
            )
        self._told = why

    def _failed(self, error: KafkaError) -> None:
        """Process an error that librdkafka reports, repeatedly."""
        # Just after an outage librdkafka reports connections that it gave up during the outage.
        is_late = monotonic() - self._back_at < _SETTLING_SECONDS
        if error.code() in _UNREACHABLE and not is_late:
            self._unreachable(error.str())

    def _unreachable(self, why: str) -> None:
        if self._connection.lost(f"Kafka: {why}"):
            _log.warning("Kafka is unreachable (postroom keeps trying): %s", why)

    def _look_for_brokers(self, client: Client) -> None:
        """Check whether the brokers are back: librdkafka does not report it.

        Not for a client that has just replaced another: the same failure may end it, too.
        """
        if monotonic() < self._looks_from:
            return
        with suppress(KafkaException):
            client.list_topics(self._options.topic[0], timeout=_LOOK_SECONDS)
            self._connection.restored()
            self._generations.answered()
            self._back_at = monotonic()
            self._told = ""
            _log.warning("Kafka is reachable again")
            if self._has_left:
                self._has_left = False
                self._subscribe(client)

    # -- messages -----------------------------------------------------------------------------
    def _hand_over(self, client: Client, messages: Sequence[Message]) -> None:
        deliveries: list[KafkaDelivery] = []
        for message in messages:
            error = message.error()
            if error is not None:
                if error.fatal():
                    raise KafkaException(error)
                if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    self.missing.note([message.topic() or ""])
                    continue
                _log.warning("Kafka: %s", error.str())
                if error.code() in _UNREADABLE:
                    deliveries += self._step_over(client, message, error)
                continue
            place = (message.topic() or "", message.partition() or 0)
            if place in self._starts:  # fetched before the partition was paused
                client.seek(self._starts.start_of(place))
                continue
            partition = self._partitions.get(place)
            offset = message.offset()
            if partition is not None and offset is not None:
                if offset <= partition.highest:
                    partition = self._begun_again(partition)
                partition.arrived(offset)
                found = incoming(message, self._options.names, partition.topic_id)
                deliveries.append(KafkaDelivery(partition, offset, found))
        if deliveries:
            self._arrivals.put(deliveries)
            with suppress(RuntimeError):  # the loop is closed: nothing receives it any more
                self._tell()

    def _step_over(
        self, client: Client, message: Message, error: KafkaError
    ) -> list[KafkaDelivery]:
        """Make a dead letter of a record that cannot be decoded, and continue behind it.

        librdkafka fetches such a batch over and over, and nothing behind it would ever arrive. It
        does not report where the batch ends: so record by record, each after several attempts.
        """
        partition = self._partitions.get((message.topic() or "", message.partition() or 0))
        base = message.offset()
        if partition is None or base is None or base < 0:
            return []
        offset = max(base, partition.highest + 1)
        if not partition.is_unreadable(offset, monotonic()):
            return []
        partition.arrived(offset)
        client.seek(TopicPartition(partition.topic, partition.number, offset + 1))
        place = f"{partition.topic}/{partition.number}/{offset}"
        problem = f"the record {place} cannot be decoded: {error.str()}"
        _log.error("Kafka: %s; it becomes a dead letter without a body", problem)
        found = Incoming(partition.topic, b"", {BODY_BYTES: "0"}, None, place, problem)
        return [KafkaDelivery(partition, offset, found)]

    def _begun_again(self, old: Partition) -> Partition:
        """Offsets went back: usually the topic was deleted and created again.

        Nothing of the old topic counts. Raises if Kafka does not answer; the client is then
        replaced.
        """
        old.lose()
        topic_id = self._cluster.topic_ids([old.topic])[old.topic]
        new = self._partitions[old.topic, old.number] = Partition(old.topic, old.number, topic_id)
        self._generations.look_soon()  # for the other partitions
        return new

    def _begin_topic_again(self, client: Client, topic: str, topic_id: str) -> None:
        """Read a topic that was deleted and created again from its beginning.

        If something fails, a new client starts there: the id is remembered at the end.
        """
        _log.warning(
            "the topic %r was deleted and created again; postroom reads it from the beginning",
            topic,
        )
        for place, old in list(self._partitions.items()):
            if old.topic == topic and old.topic_id != topic_id:
                old.lose()
                client.seek(TopicPartition(*place, OFFSET_BEGINNING))
                if place in self._starts:  # its start is known now
                    self._starts.forget([place])
                    self._held_back = None
                self._partitions[place] = Partition(*place, topic_id)
        self._generations.note({topic: topic_id})

    def _topics(self) -> set[str]:
        return {topic for topic, _ in self._partitions}

    def _hold_back(self, client: Client) -> None:
        """Pause the assigned partitions while enough is in flight; polling goes on."""
        enough = self.paused.is_set() or self._arrivals.are_enough
        if enough != self._held_back:
            assigned = [
                each
                for each in client.assignment()
                if enough or (each.topic, each.partition) not in self._starts
            ]
            (client.pause if enough else client.resume)(assigned)
            self._held_back = enough

    # -- offsets ------------------------------------------------------------------------------
    def _commit(self, client: Client, *, last: bool = False) -> None:
        """Commit finished offsets without waiting; the last time also refused ones.

        A commit that waits has no time limit in librdkafka. While Kafka does not answer, this
        thread would be blocked for minutes: it would lose its membership, and could not be stopped.
        """
        due = [
            TopicPartition(partition.topic, partition.number, offset)
            for place, partition in self._partitions.items()
            if (last or self._commits.may_be_offered(place))
            and (offset := partition.to_commit()) is not None
        ]
        if not due:
            return
        try:
            client.commit(offsets=due, asynchronous=True)
        except KafkaException as error:
            self._answered(error.args[0], due)
        else:
            self._unanswered += 1

    def _committed(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        """Process a commit that librdkafka reports during a poll."""
        self._unanswered -= 1
        if self._starts.answered(error, partitions):
            self._held_back = None  # to be resumed
        self._answered(error, partitions)

    def _answered(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        ours = [
            each
            for each in partitions
            if (place := (each.topic, each.partition)) in self._partitions
            and place not in self._starts
        ]
        for place in self._commits.answered(error, ours):
            self._partitions[place].not_committed()

    def _finish(self, client: Client) -> None:
        """Commit finished offsets and wait briefly for the answer: the rest is delivered again.

        Messages polled meanwhile are not passed on, and are delivered again.
        """
        self._commit(client, last=True)
        deadline = monotonic() + _FINISH_SECONDS
        while self._unanswered > 0 and monotonic() < deadline:
            client.poll(_POLL_SECONDS)

    # -- rebalances ---------------------------------------------------------------------------
    def _assigned(self, client: Client, partitions: Sequence[TopicPartition]) -> None:
        """Start with partitions. Raises if Kafka does not answer: then a new client joins."""
        ids = self._cluster.topic_ids({each.topic for each in partitions})
        others = {topic for topic in ids if self._generations.is_another(topic, ids[topic])}
        places = [each for each in partitions if each.topic not in others]
        fresh: list[TopicPartition] = []
        if places and self._options.start == "latest":
            places, fresh = self._at_the_end(client, places)
        # Offsets committed since may belong to the old topic.
        places += [
            TopicPartition(each.topic, each.partition, OFFSET_BEGINNING)
            for each in partitions
            if each.topic in others
        ]
        for each in partitions:
            place = (each.topic, each.partition)
            self._partitions[place] = Partition(*place, ids[each.topic])
        self._held_back = None
        client.incremental_assign([*places, *fresh])
        if fresh:
            client.pause(fresh)
            self._starts.begin(fresh)
        self._generations.note(ids)

    def _at_the_end(
        self, client: Client, partitions: list[TopicPartition]
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return where to start; second, without an offset of the group, the end (see `starts`)."""
        known = self._cluster.committed(client, partitions)
        fresh = self._cluster.ends([each for each in known if each.offset < 0])
        return [each for each in known if each.offset >= 0], fresh

    def _revoked(self, client: Client, partitions: Sequence[TopicPartition]) -> None:
        """Commit finished offsets, then release. Running messages are delivered again and found
        done.

        The commit reaches the coordinator before the release of the partitions, on the same
        connection: the next owner starts behind it. If it fails, the inbox drops repeats.
        """
        self._commit(client, last=True)
        self._lose([(each.topic, each.partition) for each in partitions])

    def _taken(self, client: Client, partitions: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        """Another member already has them: there is nothing to commit any more."""
        self._lose([(each.topic, each.partition) for each in partitions])

    def _lose(self, partitions: Sequence[tuple[str, int]]) -> None:
        self._commits.forget(partitions)
        self._starts.forget(partitions)
        for each in partitions:
            found = self._partitions.pop(each, None)
            if found is not None:
                found.lose()


class _LogLines:
    """Passes on librdkafka's log lines, which repeat at every attempt, at DEBUG."""

    def __init__(self, options: KafkaSourceSettings) -> None:
        self._secrets = [v for n, v in options.config.items() if v and is_secret(n, str(v))]

    def log(self, level: int, form: str, *parts: object) -> None:
        line = form % parts if parts else form
        for secret in self._secrets:
            line = line.replace(str(secret), MASK)
        _log.log(logging.WARNING if level >= logging.CRITICAL else logging.DEBUG, "%s", line)
