"""The durable inbox: messages stored before, or instead of, being handled.

A stored message is a row of the store's outbox table, in the stream `inbox.<consumer>`. A relay
whose destination is the consumer's handlers works through it, with the same leases, order, retries
and dead letters as for outgoing events. A stored message has had no effect yet: only the inbox row
written in a handler's own transaction marks it as done.
"""

from __future__ import annotations

from collections.abc import Sequence

from postroom import notifier, transactions
from postroom.broker import UNSENT, Broker, BrokerCapabilities, Outcome, Reporter, Verdict
from postroom.engine.consumer.messages import restore, to_row
from postroom.engine.handlers.handlers import Handlers
from postroom.errors import EventError
from postroom.event import INBOX_STREAM_PREFIX
from postroom.model.history import append, command
from postroom.model.incoming import BODY_BYTES, Incoming
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
    """Return the stream that holds a consumer's stored messages."""
    return INBOX_STREAM_PREFIX + consumer


class DurableInbox:
    """The stored messages of one consumer in one open store.

    strict    its handlers wait for every number of a key, so none of its messages is ever
              buried automatically. Other handlers ignore the number of a message.
    """

    def __init__(self, store: Store, consumer: str, *, strict: bool) -> None:
        self.store = store
        self.consumer = consumer
        self.strict = strict
        self.stream = stream_of(consumer)

    async def keep(self, messages: Sequence[tuple[Incoming, Record]]) -> int:
        """Store messages in order, in one transaction; returns how many were new.

        Afterwards they can be acknowledged. A message that was stored before is left alone; an
        interrupted burial is completed.
        """
        rows = [self._row(message, record) for message, record in messages]
        new = await self._insert(rows)
        if new < len(rows):
            await self._finish_burials([row.id for row in rows])
        notifier.kick((self.stream,))
        return new

    async def bury(
        self,
        message: Incoming,
        record: Record,
        reason: str,
        history: str | None = None,
        attempts: int = 0,
    ) -> None:
        """Make a dead letter of a message that was never stored; idempotent.

        Two steps, and safe between them: the row is scheduled for the far future, and the broker
        redelivers the message, which is not acknowledged yet. Its key then has a stored row, so
        `keep` receives the message and takes the second step.
        """
        row = self._row(message, record)
        await self._insert([row._replace(available_us=_FAR_AWAY_US)])
        await self.store.bury(
            [row.id], reason, history=history or self._told(reason), attempts=attempts
        )

    async def _finish_burials(self, ids: Sequence[str]) -> None:
        """Take the second step of `bury` for messages whose consumer died before it."""
        found = await self.store.look_up(ids)
        waiting = [event_id for event_id, where in found.items() if where.state == "pending"]
        kept = [await self.store.get(event_id) for event_id in waiting]
        cut = [r.id for r in kept if r is not None and r.next_attempt_us == _FAR_AWAY_US]
        if cut:
            await self.store.bury(cut, _CUT_SHORT, history=self._told(_CUT_SHORT), attempts=0)

    def _told(self, reason: str) -> str:
        return append(None, command(self.consumer, "bury", reason))

    def _row(self, message: Incoming, record: Record) -> Row:
        row = to_row(message, record, self.consumer, self.stream)
        return row if self.strict else row._replace(kseq=None)

    async def _insert(self, rows: Sequence[Row]) -> int:
        async with self.store.transaction() as tx:
            adapter = transactions.resolve(tx, self.store.tables.qualified)
            new = await adapter.insert(rows)
            if new < len(rows):  # before the commit: either all of them are stored, or none
                await self._refuse_strangers(rows)
        return new

    async def _refuse_strangers(self, rows: Sequence[Row]) -> None:
        """Raise EventError if an id is taken by a row that is not an earlier delivery of the
        message.
        """
        for event_id, where in (await self.store.look_up([r.id for r in rows])).items():
            if (stream := where.stream) != self.stream:
                raise EventError(
                    "id",
                    f"{event_id!r} is the id of a row in the stream {stream!r} that was not stored "
                    f"by {self.consumer!r}: delete that row, or give it another id",
                )


class StoredMessages(Broker):
    """Handlers as the destination of stored messages: each row is passed on as its message."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    @property
    def capabilities(self) -> BrokerCapabilities:
        return self._handlers.capabilities

    def bind(self, store: Store, lease_seconds: float, *, stream: str) -> StoredMessages:
        """Bind the handlers under the consumer's name, not this stream's."""
        name = stream.removeprefix(INBOX_STREAM_PREFIX)
        return StoredMessages(self._handlers.bind(store, lease_seconds, name=name))

    async def open(self) -> None:
        await self._handlers.open()

    async def close(self) -> None:
        """Leave the handlers open: their owner still uses them."""

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
    """Return whether the message was too large to be stored whole: a handler must not see an empty
    body.
    """
    return BODY_BYTES in (record.headers_json or "") and BODY_BYTES in record.headers


class _Unpacking:
    """Reports outcomes to the relay under the rows that it knows."""

    def __init__(self, reporter: Reporter, batch: Sequence[Record]) -> None:
        self._reporter = reporter
        self._kept = {record.seq: record for record in batch}

    @property
    def outbox_id(self) -> str:
        return self._reporter.outbox_id

    @property
    def keeps_receipts(self) -> bool:
        return self._reporter.keeps_receipts

    def confirm(self, records: Sequence[Record], receipts: Sequence[str] = ()) -> None:
        self._reporter.confirm([self._kept[record.seq] for record in records], receipts)

    def report(self, record: Record, outcome: Outcome) -> None:
        self._reporter.report(self._kept[record.seq], outcome)

    async def begin(self, record: Record) -> bool:
        return await self._reporter.begin(self._kept[record.seq])

    def may_go_on(self, record: Record) -> bool:
        return self._reporter.may_go_on(self._kept[record.seq])
