"""Transactions: each lane has its own producer and transactional id (K6).

A relay that takes over a lane and sends gets the id's next epoch: the broker fences the producer of
a relay that lost the lane without noticing, and aborts its open transaction.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import monotonic, sleep
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from postroom.brokers.kafka import error_codes
from postroom.brokers.kafka.log import LogLines
from postroom.brokers.kafka.message import Message
from postroom.brokers.kafka.receipts import receipt_of
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.brokers.kafka.verdicts import FENCED, REFUSED, WRONG_TOPIC, Loss, outgrows_queue
from postroom.model.pauses import Pauses

MOST_AT_ONCE = 16
MOST_LANES = 64
ABORT_SECONDS = 5.0
SMALL_SECONDS = 60.0
_GRAVE = 2  # log level of librdkafka: idle lanes do not read its lines
_ROOM_SECONDS = 0.1
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_TELLING = REFUSED | WRONG_TOPIC


class LaneProducer:
    """Sends batches of one lane, each in a transaction. All calls block; one runs at a time."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._producer: Producer | None = None
        self._batch_bytes = 0
        self._needed_at = 0.0  # maximum batch size
        self._using = threading.Lock()

    def send(
        self,
        messages: Sequence[Message],
        batch_bytes: int,
        within_seconds: float,
        receipts: dict[int, str] | None = None,
    ) -> list[Loss] | None:
        """Send all or nothing. None: it is committed. Otherwise the reason, for each message.

        receipts    gets the receipts of messages, by their index
        """
        deadline = monotonic() + within_seconds
        if not self._using.acquire(timeout=within_seconds):
            return _all(messages, Loss(error_codes.TIMED_OUT, "the lane is in use", left=False))
        try:
            if batch_bytes < self._batch_bytes:  # a topic with a smaller limit was added (K2)
                self._producer = None
            elif batch_bytes == self._batch_bytes:
                self._needed_at = monotonic()
            elif monotonic() > self._needed_at + SMALL_SECONDS:  # and has not repeated
                self._producer = None
            return self._send(messages, batch_bytes, deadline, receipts)
        finally:
            self._using.release()

    def close(self) -> None:
        """Close the producer, unless it is in use; then its user closes it."""
        self._producer = None

    def listen(self) -> None:
        """Process events since the last transaction, so that they do not pile up."""
        producer = self._producer
        if producer is not None and not self.in_use:
            with suppress(KafkaException):
                producer.poll(0)

    @property
    def in_use(self) -> bool:
        return self._using.locked()

    def _send(
        self,
        messages: Sequence[Message],
        batch_bytes: int,
        deadline: float,
        receipts: dict[int, str] | None,
    ) -> list[Loss] | None:
        producer = self._producer
        if producer is None:
            self._batch_bytes, self._needed_at = batch_bytes, monotonic()
            try:
                producer = self._producer = self._begun(deadline)
            except KafkaException as error:
                return _all(messages, _loss(error, left=False))
        problems: dict[int, Loss] = {}
        try:
            producer.begin_transaction()
            for i, (topic, value, key, headers, partition) in enumerate(messages):
                report = partial(_reported, problems, receipts, i)
                while True:
                    try:
                        producer.produce(topic, value, key, partition, report, headers=headers)
                        break
                    except BufferError:  # its queue is full: reports free it
                        if not len(producer):
                            problems[i] = outgrows_queue(messages[i].size)
                            raise
                        if monotonic() >= deadline:
                            raise
                        producer.poll(_ROOM_SECONDS)
            _repeat(producer.commit_transaction, deadline)
        except Exception as error:
            # Even after an abort its sequence has a gap; the next producer of this id starts anew.
            self._producer = None
            _abort(producer, error)
            return [problems.get(i, _loss(error)) for i in range(len(messages))]
        return None

    def _begun(self, deadline: float) -> Producer:
        producer = Producer({**self._config, "batch.size": self._batch_bytes})
        _repeat(producer.init_transactions, deadline)
        return producer


class LaneProducers:
    """The producers of the lanes that were served lately."""

    def __init__(self, settings: KafkaSettings, lines: LogLines) -> None:
        self._settings = settings
        self._lines = lines
        self._producers: OrderedDict[str, LaneProducer] = OrderedDict()
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="postroom-kafka")

    async def send(
        self,
        outbox_id: str,
        stream: str,
        lane: int,
        messages: Sequence[Message],
        batch_bytes: int,
        receipts: dict[int, str] | None = None,
    ) -> list[Loss] | None:
        """Send messages of a lane, all or nothing, in batches of at most this size."""
        producer = self._producer(
            f"{self._settings.transactional_prefix}-{outbox_id}-{stream}-{lane}"
        )
        return await asyncio.get_running_loop().run_in_executor(
            self._threads,
            producer.send,
            messages,
            batch_bytes,
            self._settings.publish_seconds,
            receipts,
        )

    def listen(self) -> None:
        """Process the producers' events."""
        for producer in list(self._producers.values()):
            producer.listen()

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        producers = list(self._producers.values())
        self._producers.clear()
        await asyncio.to_thread(_close_all, producers)

    def _producer(self, transactional_id: str) -> LaneProducer:
        found = self._producers.get(transactional_id)
        if found is None:
            config = self._settings.transactional(transactional_id)
            found = LaneProducer({**config, "logger": self._lines, "log_level": _GRAVE})
            self._producers[transactional_id] = found
            self._make_room()
        self._producers.move_to_end(transactional_id)
        return found

    def _make_room(self) -> None:
        for name, producer in list(self._producers.items()):
            if len(self._producers) <= MOST_LANES:
                return
            if not producer.in_use:
                del self._producers[name]
                self._threads.submit(producer.close)


def _abort(producer: Producer, error: Exception) -> None:
    """Abort the transaction, so that nothing waits for its timeout. Without an answer it
    times out.
    """
    if isinstance(error, KafkaException) and error.args[0].fatal():
        return  # the broker has already aborted it
    with suppress(KafkaException):
        producer.purge(blocking=False)
        producer.abort_transaction(ABORT_SECONDS)
        producer.poll(0)


def _repeat(step: Callable[[float], None], deadline: float) -> None:
    """Run a step of a transaction, and repeat it in time if it is retriable.

    The pauses grow. The last one ends before the deadline, so that the step is tried once more.
    """
    pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
    while True:
        try:
            step(max(0.1, deadline - monotonic()))
        except KafkaException as error:
            problem: KafkaError = error.args[0]
            if not problem.retriable() or monotonic() >= deadline:
                raise
            sleep(max(0.0, min(pauses.grow(), deadline - monotonic())))
        else:
            return


def _reported(
    problems: dict[int, Loss],
    receipts: dict[int, str] | None,
    i: int,
    error: KafkaError | None,
    message: Delivered,
) -> None:
    if error is None and receipts is not None:
        receipts[i] = receipt_of(message)
    if error is not None and error.code() in _TELLING:
        problems[i] = Loss(error.code(), error.str(), message.partition())


def _loss(error: Exception, *, left: bool = True) -> Loss:
    if not isinstance(error, KafkaException):
        return Loss(error_codes.FAIL, str(error), left=left)
    problem: KafkaError = error.args[0]
    if problem.code() in FENCED:
        return Loss(problem.code(), "fenced: another relay serves this lane", left=left)
    return Loss(problem.code(), problem.str(), left=left)


def _all(messages: Sequence[Message], loss: Loss) -> list[Loss]:
    return [loss] * len(messages)


def _close_all(producers: list[LaneProducer]) -> None:
    for producer in producers:
        producer.close()
