"""The backlog: messages that are kept before, or instead of, being handled.

A kept message is a row of the store's outbox table, in the stream `inbox.<consumer>`, and a relay
whose destination are the consumer's handlers works through it: the same leases, order, retries and
dead letters as for events that leave. That a message is kept says nothing about its effect: only
the inbox row that a handler's own transaction writes counts as done.
"""

from __future__ import annotations

from collections.abc import Sequence

from postroom import notifier, transactions
from postroom.broker import UNSENT, Broker, BrokerCapabilities, Outcome, Reporter, Verdict
from postroom.engine.consumer.messages import restore, to_row
from postroom.engine.consumer.size_limit import BODY_BYTES
from postroom.engine.handlers.handlers import Handlers
from postroom.errors import EventError
from postroom.event import INBOX_STREAM_PREFIX
from postroom.model.incoming import Incoming
from postroom.record import Record
from postroom.store import Store
from postroom.transaction import Row

_NO_BODY = Outcome(
    Verdict.REJECTED,
    "the message was larger than max_bytes, so its body was not stored: have it sent again",
)
_FAR_AWAY_US = 32_503_680_000_000_000  # the year 3000
_CUT_SHORT = (
    "the message could not be handled; the error is lost, because the consumer died while it "
    "wrote this dead letter"
)


def stream_of(consumer: str) -> str:
    """Return the stream that a consumer's kept messages are in."""
    return INBOX_STREAM_PREFIX + consumer


class DurableInbox:
    """The kept messages of one consumer in one store, which is open.

    strict    its handlers wait for every number of a key: none of the key's messages is ever
              buried by itself. For others the number of a message is a header like any other.
    """

    def __init__(self, store: Store, consumer: str, *, strict: bool) -> None:
        self.store = store
        self.consumer = consumer
        self.strict = strict
        self.stream = stream_of(consumer)

    async def keep(self, messages: Sequence[tuple[Incoming, Record]]) -> int:
        """Keep messages in their order, in one transaction; returns how many were not there yet.

        After it they can be acknowledged. A message that was kept before is left alone; one whose
        burial was cut short is buried now.
        """
        rows = [self._row(message, record) for message, record in messages]
        new = await self._insert(rows)
        if new < len(rows):
            await self._finish_burials([row.id for row in rows])
        notifier.kick((self.stream,))
        return new

    async def bury(self, message: Incoming, record: Record, reason: str) -> None:
        """Make a dead letter of a message that was never kept; a repeat changes nothing.

        Two steps, and safe between them: the row waits for the far future, and the message, not yet
        acknowledged, comes again. Its key has a row in the backlog, so `keep` gets it, which takes
        the second step.
        """
        row = self._row(message, record)
        await self._insert([row._replace(available_us=_FAR_AWAY_US)])
        await self.store.bury([row.id], reason)

    async def _finish_burials(self, ids: Sequence[str]) -> None:
        """Take the second step of `bury` for messages whose consumer died before it."""
        found = await self.store.look_up(ids)
        waiting = [event_id for event_id, where in found.items() if where.state == "pending"]
        kept = [await self.store.get(event_id) for event_id in waiting]
        cut = [r.id for r in kept if r is not None and r.next_attempt_us == _FAR_AWAY_US]
        if cut:
            await self.store.bury(cut, _CUT_SHORT)

    def _row(self, message: Incoming, record: Record) -> Row:
        row = to_row(message, record, self.consumer, self.stream)
        return row if self.strict else row._replace(kseq=None)

    async def _insert(self, rows: Sequence[Row]) -> int:
        async with self.store.transaction() as tx:
            adapter = transactions.resolve(tx, self.store.tables.qualified)
            new = await adapter.insert(rows)
            if new < len(rows):  # before the commit: all of them are kept, or none
                await self._refuse_strangers(rows)
        return new

    async def _refuse_strangers(self, rows: Sequence[Row]) -> None:
        """Raise EventError if an id is taken, and not by an earlier delivery of the message."""
        for event_id, (stream, _) in (await self.store.look_up([r.id for r in rows])).items():
            if stream != self.stream:
                raise EventError(
                    "id",
                    f"{event_id!r} is the id of a row in the stream {stream!r} that was not stored "
                    f"by {self.consumer!r}: delete that row, or give it another id",
                )


class StoredMessages(Broker):
    """Handlers as the destination of a backlog: each kept row is handed over as its message."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    @property
    def capabilities(self) -> BrokerCapabilities:
        return self._handlers.capabilities

    def bind(self, store: Store, lease_seconds: float, *, stream: str) -> StoredMessages:
        """Bind the handlers; their name is not this stream's, but the consumer's."""
        name = stream.removeprefix(INBOX_STREAM_PREFIX)
        return StoredMessages(self._handlers.bind(store, lease_seconds, name=name))

    async def open(self) -> None:
        await self._handlers.open()

    async def close(self) -> None:
        """Leave the handlers to their owner, who uses them besides."""

    async def health(self) -> None:
        await self._handlers.health()

    async def forget_accepted(self, older_than_seconds: float) -> int:
        return await self._handlers.forget_accepted(older_than_seconds)

    async def publish(self, batch: Sequence[Record], reporter: Reporter) -> None:
        unpacking = _Unpacking(reporter, batch)
        whole: list[Record] = []
        stopped: set[bytes] = set()
        for record in batch:
            if record.key_hash in stopped:
                reporter.report(record, UNSENT)
            elif _has_no_body(record):
                stopped.add(record.key_hash)
                reporter.report(record, _NO_BODY)
            else:
                whole.append(restore(record))
        if whole:
            await self._handlers.publish(whole, unpacking)

    async def publish_alone(self, record: Record, reporter: Reporter) -> None:
        if _has_no_body(record):
            reporter.report(record, _NO_BODY)
            return
        await self._handlers.publish_alone(restore(record), _Unpacking(reporter, (record,)))


def _has_no_body(record: Record) -> bool:
    """Say whether it was too large to be kept whole: a handler must not see an empty body."""
    return BODY_BYTES in (record.headers_json or "") and BODY_BYTES in record.headers


class _Unpacking:
    """Speaks to the relay of the rows that it knows."""

    def __init__(self, reporter: Reporter, batch: Sequence[Record]) -> None:
        self._reporter = reporter
        self._kept = {record.seq: record for record in batch}

    @property
    def outbox_id(self) -> str:
        return self._reporter.outbox_id

    def confirm(self, records: Sequence[Record]) -> None:
        self._reporter.confirm([self._kept[record.seq] for record in records])

    def report(self, record: Record, outcome: Outcome) -> None:
        self._reporter.report(self._kept[record.seq], outcome)

    async def begin(self, record: Record) -> bool:
        return await self._reporter.begin(self._kept[record.seq])

    def may_go_on(self, record: Record) -> bool:
        return self._reporter.may_go_on(self._kept[record.seq])
