"""A session: one idempotent producer, from its start to its first error.

librdkafka reports from a thread that calls `poll`; the reports are passed to the event loop in
bulk. A session that has met an unrecoverable error is ended: its queue is purged, so that nothing
is sent later, and records without a report are unknown (K3).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from postroom.brokers.kafka import error_codes
from postroom.brokers.kafka.log import LogLines
from postroom.brokers.kafka.message import Writer
from postroom.brokers.kafka.publish_call import PublishCall
from postroom.brokers.kafka.receipts import receipt_of
from postroom.brokers.kafka.verdicts import (
    NEVER_LEFT,
    Loss,
    not_taken,
    outgrows_queue,
    unwritable,
)

POLL_SECONDS = 0.1
IDLE_SECONDS = 0.2
GATHER_SECONDS = 0.005
PAUSE_SECONDS = 0.001  # librdkafka counts in milliseconds
LAST_REPORTS_SECONDS = 2.0
FATAL_GRACE_SECONDS = 1.0

_Report = tuple[PublishCall, int, Loss | None, str]


class Session:
    """A producer, its thread, and the publish calls in flight on it.

    suspect      it has lost all its brokers; check that the cluster answers before using it
    unreachable  why the cluster gave no answer, if that ended the session
    used_at      when it was last used, on the monotonic clock
    on_suspect   called on the event loop
    """

    def __init__(
        self,
        config: dict[str, Any],
        write: Writer,
        lines: LogLines,
        on_suspect: Callable[[Session], None],
    ) -> None:
        self.used_at = monotonic()
        self.calls: set[PublishCall] = set()
        self.suspect = False
        self.retired = False
        self.unreachable = ""
        self._write = write
        self._on_suspect = on_suspect
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self._ending = False
        self._given_up: set[PublishCall] = set()
        self._on_its_way = 0  # the producer has it, and has not reported it
        self._waiting: deque[tuple[PublishCall, Sequence[int]]] = deque()  # for room in its queue
        self._landed: list[_Report] = []
        self._wanted = threading.Event()
        own = {"error_cb": self._noticed, "logger": lines}
        self._producer: Producer | None = Producer({**config, **own})
        threading.Thread(target=self._poll, name="postroom-kafka", daemon=True).start()

    # -- out ----------------------------------------------------------------------------------
    def post(self, call: PublishCall, indices: Sequence[int]) -> None:
        """Pass messages to the producer, in order. A message that it refuses is lost at once.

        While its queue is full they wait here: reports make room, and they follow in order.
        """
        producer = self._producer
        if producer is None or self._ending:
            for i in indices:
                call.lose(i, NEVER_LEFT)
            return
        self.calls.add(call)
        if self._waiting:
            self._waiting.append((call, indices))
        else:
            self._produce(producer, call, indices)
        self._wanted.set()  # not before: two threads would contend for the GIL

    def _go_on(self) -> None:
        """Pass on messages that waited for room in the queue."""
        waiting, self._waiting = self._waiting, deque()
        while waiting and not self._waiting and self._producer is not None:
            self._produce(self._producer, *waiting.popleft())
        self._waiting.extend(waiting)
        self._wanted.set()

    def _produce(self, producer: Producer, call: PublishCall, indices: Sequence[int]) -> None:
        produce, write = producer.produce, self._write
        records, outbox_id, stopped = call.records, call.reporter.outbox_id, call.stopped
        landed = partial(_land, self._landed.append, call)
        for n, i in enumerate(indices):
            record = records[i]
            if stopped and record.key_hash in stopped:
                call.lose(i, NEVER_LEFT)
                continue
            try:
                topic, value, key, headers, partition = message = write(record, outbox_id)
                produce(topic, value, key, partition, partial(landed, i), headers=headers)
            except BufferError:  # its queue is full
                if self._on_its_way:
                    self._waiting.append((call, indices[n:]))
                    return
                call.lose(i, outgrows_queue(message.size))
            except KafkaException as error:
                call.lose(i, not_taken(error.args[0]))
            except Exception as error:  # it cannot be encoded as a message
                call.lose(i, unwritable(error))
            else:
                self._on_its_way += 1

    def withdraw(self, call: PublishCall) -> None:
        """A call has ended; the last one of a retired session ends it."""
        self.calls.discard(call)
        self._given_up.discard(call)
        self._send_no_more(call)
        self._end_if_idle()

    def give_up(self, call: PublishCall) -> None:
        """A call has timed out: it gets its outcomes when the session ends."""
        self.calls.discard(call)
        self._given_up.add(call)
        self._send_no_more(call)
        self._end_if_idle()

    def _send_no_more(self, call: PublishCall | None = None) -> None:
        """Drop messages that wait for room in the queue, of one call or of all."""
        waiting, self._waiting = self._waiting, deque()
        for each, indices in waiting:
            if call is None or each is call:
                for i in indices:
                    each.lose(i, NEVER_LEFT)
            else:
                self._waiting.append((each, indices))

    # -- the end ------------------------------------------------------------------------------
    def retire(self, grace_seconds: float) -> None:
        """Accept no more calls; end after the last one, or after the grace period."""
        if not self.retired:
            self.retired = True
            self._loop.call_later(grace_seconds, self.end)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self.retired and not self.calls:
            self.end()

    def end(self, unreachable: str = "") -> None:
        """Purge queue and messages in flight, and close the producer."""
        self.retired = True
        if self._ending:
            return
        self._ending = True
        self.unreachable = unreachable
        self._send_no_more()
        self._wanted.set()
        if self._producer is not None:
            self._producer.purge(blocking=False)

    @property
    def is_gone(self) -> bool:
        return self._gone.is_set()

    async def gone(self, within_seconds: float) -> None:
        """Wait until the producer is closed; a stuck thread is abandoned."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._gone.wait()
        except TimeoutError:
            pass

    # -- in the thread ------------------------------------------------------------------------
    def _poll(self) -> None:
        producer = self._producer
        assert producer is not None
        try:
            while not self._ending:
                self._wanted.wait(IDLE_SECONDS)
                self._wanted.clear()
                self._poll_once(producer, 0)  # an idle connection has events, too
                while len(producer) and not self._ending:
                    self._poll_once(producer, POLL_SECONDS)
            deadline = monotonic() + LAST_REPORTS_SECONDS
            producer.purge(blocking=False)  # again: messages that were about to enter the queue
            while len(producer) and monotonic() < deadline:
                self._poll_once(producer, POLL_SECONDS)
            self._poll_once(producer, 0)
            self._tell(self._close_all)
            self._producer = None
            del producer  # with a dead broker this may take long: it is not awaited
            self._tell(self._gone.set)
        except RuntimeError:  # the event loop is closed: there is no receiver left
            self._producer = None

    def _poll_once(self, producer: Producer, timeout_seconds: float) -> None:
        try:
            producer.poll(timeout_seconds)
            if self._landed:  # others of the batch follow shortly: one callback for all
                deadline, landed = monotonic() + GATHER_SECONDS, 0
                while landed < len(self._landed) and len(producer) and monotonic() < deadline:
                    landed = len(self._landed)
                    producer.poll(PAUSE_SECONDS)
        except KafkaException:
            self._tell(self._broke)  # the log and the reports contain the reason
        if self._landed:
            reports = self._landed[:]
            self._landed.clear()
            self._tell(partial(self._take, reports))

    def _noticed(self, error: KafkaError) -> None:
        """Process an error that librdkafka mentions, usually about a connection."""
        if error.fatal():
            self._tell(self._broke)
        elif error.code() == error_codes.ALL_BROKERS_DOWN:
            self._tell(self._shook)

    def _tell(self, news: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(news)

    # -- on the event loop again --------------------------------------------------------------
    def _take(self, reports: list[_Report]) -> None:
        self._on_its_way -= len(reports)
        arrived: dict[PublishCall, tuple[list[int], list[str]]] = {}
        for call, i, loss, receipt in reports:
            if loss is None:
                indices, receipts = arrived.setdefault(call, ([], []))
                indices.append(i)
                receipts.append(receipt)
        for call, (indices, receipts) in arrived.items():
            following = call.confirmed(indices, receipts if call.reporter.keeps_receipts else ())
            if following:
                self.post(call, following)
        for call, i, loss, _ in reports:
            if loss is not None:
                call.lose(i, loss)
        if self._waiting and not self._ending:
            self._go_on()

    def _shook(self) -> None:
        self.suspect = True
        self._on_suspect(self)

    def _broke(self) -> None:
        """A fatal error: the producer is unusable. Messages in flight get a moment."""
        self.retire(FATAL_GRACE_SECONDS)

    def _close_all(self) -> None:
        for call in self.calls | self._given_up:
            call.close()


def _land(
    append: Callable[[_Report], None],
    call: PublishCall,
    i: int,
    error: KafkaError | None,
    message: Delivered,
) -> None:
    """Record a delivery report. It has no headers: its index in the call identifies it (K4).

    A message without a partition was not sent: a new producer that met an unresponsive broker never
    learned where to send it. That is not the event's fault.
    """
    if error is None:
        append((call, i, None, receipt_of(message) if call.reporter.keeps_receipts else ""))
        return
    partition = message.partition()
    loss = Loss(error.code(), error.str(), partition, left=partition is not None)
    append((call, i, loss, ""))
