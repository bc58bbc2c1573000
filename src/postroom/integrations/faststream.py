"""The inbox around FastStream's own subscribers, for RabbitMQ and Kafka (confluent).

    broker = RabbitBroker(url, middlewares=[inbox_middleware("payments", sessions.begin)])

    @broker.subscriber("payments", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def pay(order: Order, tx: Annotated[AsyncSession, Context("tx")]): ...

The transaction is opened before the subscriber and committed after it; `accept` comes first, and a
repeat is not handed on. FastStream acknowledges when the middleware has returned: after the commit.

The inbox knows a subscriber by the middleware's `consumer`, its function's name and its queue, or
its topics and group: each subscriber of a broker sees every message. A repeat is acknowledged and
goes nowhere else: a `@broker.publisher` publishes nothing for it. FastStream publishes after the
commit, so a crash in between loses what a publisher would have sent; add it to the outbox instead.

A message that fails is nacked after a pause that grows with each of its failures. A message is
rejected without being requeued, with an error in the log, if it has no id (with
missing_id="reject"), cannot be read, or its subscriber has ended the transaction in a way that a
second run could repeat (see `faststream_runs`): give a RabbitMQ queue a dead-letter exchange, or it
is gone. On Kafka its offset is committed.

Its defaults lose messages. Kafka's acknowledges first; RabbitMQ's rejects on an error, for good.
Both are refused (I5): call `check_policies(broker)` when the application starts.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from postroom.engine.consumer.messages import to_record
from postroom.errors import ConfigError, EventError, MissingExtraError
from postroom.event import MAX_NAME_BYTES
from postroom.inbox import Inbox
from postroom.model.foreign_messages import Names
from postroom.model.incoming import Incoming
from postroom.model.message_id import MissingId
from postroom.record import Record
from postroom.transaction import Acceptance
from postroom.transactions.queries import DEFAULT_PREFIX, qualify

try:
    from faststream import AckPolicy, BaseMiddleware
    from faststream.exceptions import AckMessage

    from postroom.integrations.faststream_runs import Factory, Failures, Run, rejection
except ImportError as error:
    raise MissingExtraError("faststream", "faststream") from error

if TYPE_CHECKING:
    from faststream._internal.basic_types import AsyncFuncAny
    from faststream._internal.context.repository import ContextRepo
    from faststream.message import StreamMessage


def inbox_middleware(
    consumer: str,
    transaction: Factory,
    *,
    name: str = "tx",
    missing_id: MissingId = "hash",
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
    id_header: str = "",
    type_header: str = "",
) -> Callable[..., BaseMiddleware[Any, Any]]:
    """Return a middleware that runs subscribers in transactions, each message once.

    consumer      the first part of the name by which the inbox remembers. Two applications that
                  share a database need different ones, unless they are the same
    transaction   a factory of async context managers that yield an open transaction, commit on a
                  clean exit and roll back on an exception
    name          under which a subscriber finds the transaction: `Context("tx")`
    missing_id    as in ConsumerSettings
    prefix, schema    of the inbox table, as in Inbox
    id_header, type_header    headers in which foreign senders put the id and the type of a message
    """
    Inbox(consumer, prefix=prefix, schema=schema)  # refuses a name that makes no sense
    scoped, names, failures = qualify(prefix, schema), Names(id_header, type_header), Failures()

    class InboxMiddleware(BaseMiddleware[Any, Any]):
        """Accepts a message in the transaction of its subscriber."""

        async def consume_scope(self, call_next: AsyncFuncAny, msg: StreamMessage[Any]) -> Any:
            subscriber = self.context.get("handler_")
            _refuse_policy(subscriber)
            message = _incoming(msg, names)
            record = await _read(message, missing_id)
            known_as = inbox_name(consumer, subscriber)
            run = Run(Acceptance(known_as, record.id, record.type, record.correlation_id))

            async def call(tx: Any) -> Any:
                with self.context.scope(name, tx):
                    return await call_next(msg)

            try:
                await run.go(transaction, scoped, call)
            except Exception as error:
                await failures.judge(run, message, error)
                raise
            failures.done(run)
            if run.is_repeat:
                raise AckMessage  # a result, even None, would be published
            return run.result

    def make(msg: Any, /, *, context: ContextRepo) -> InboxMiddleware:
        return InboxMiddleware(msg, context=context)

    return make


def check_policies(broker: Any) -> None:
    """Raise ConfigError for a subscriber that could acknowledge what was not done.

    To be called before the broker starts: a message that was acknowledged first cannot be saved.
    """
    for subscriber in broker.subscribers:
        _refuse_policy(subscriber)


def _refuse_policy(subscriber: Any) -> None:
    policy = getattr(subscriber, "ack_policy", None)
    if policy is not AckPolicy.NACK_ON_ERROR:
        raise ConfigError(
            f"a subscriber has ack_policy={policy}: it can acknowledge a message that was not "
            "done. Use ack_policy=AckPolicy.NACK_ON_ERROR"
        )


def inbox_name(consumer: str, subscriber: Any) -> str:
    """Return the name by which the inbox knows a subscriber of FastStream."""
    queue = getattr(subscriber, "queue", None)
    where = [getattr(queue, "name", "")] if queue is not None else []
    where += sorted(
        getattr(topic, "name", str(topic)) for topic in getattr(subscriber, "topics", ())
    )
    group = getattr(subscriber, "group_id", None)
    function = getattr(getattr(subscriber, "specification", None), "call_name", "") or "subscriber"
    name = f"{consumer}/{function}@{','.join(where)}" + (f"#{group}" if group else "")
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    return f"{consumer[:100]}/{sha256(name.encode()).hexdigest()}"


async def _read(message: Incoming, missing_id: MissingId) -> Record:
    """Return the event of a message; reject one that has no id or makes no sense."""
    problem = message.problem
    if not problem:
        try:
            return to_record(message, missing_id)
        except EventError as error:
            problem = str(error)
    raise await rejection(message, problem)


def _incoming(message: StreamMessage[Any], names: Names) -> Incoming:
    """Read the driver's own message: FastStream makes up ids where there are none."""
    raw = message.raw_message
    if isinstance(raw, (list, tuple)):
        raise ConfigError("an inbox takes one message at a time: a subscriber without batch=True")
    if hasattr(raw, "routing_key"):  # aio-pika
        from postroom.sources.rabbitmq.message import to_text, with_properties

        return with_properties(
            Incoming(raw.routing_key or "", raw.body, to_text(raw.headers or {})),
            names,
            message_id=raw.message_id,
            kind=raw.type,
            correlation_id=raw.correlation_id,
            content_type=raw.content_type,
        )
    from postroom.sources.kafka.message import incoming

    return incoming(raw, names)
