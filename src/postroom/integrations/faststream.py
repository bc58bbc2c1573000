"""An inbox for FastStream's subscribers, for RabbitMQ and Kafka (confluent).

    broker = RabbitBroker(url, middlewares=[inbox_middleware("payments", sessions.begin)])

    @broker.subscriber("payments", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def pay(order: Order, tx: Annotated[AsyncSession, Context("tx")]): ...

The middleware opens a transaction, accepts the message, calls the subscriber and commits; a
duplicate is not passed on. FastStream acknowledges after the middleware returns: after the commit.

A subscriber's name in the inbox consists of the middleware's `consumer`, the function's name, and
the queue, or topics and group: each subscriber of a broker handles every message. A duplicate is
acknowledged, and a `@broker.publisher` publishes nothing for it. FastStream publishes after the
commit, so a crash in between loses the published message; add an event to the outbox instead.

A message that fails is nacked after a pause that grows with each of its failures. A message is
rejected without requeueing, with an error in the log, if it has no id (with missing_id="reject"),
cannot be parsed, is larger than max_bytes, or its subscriber ended the transaction so that a second
run could repeat effects (see `faststream_runs`). Without a dead-letter exchange a RabbitMQ queue
loses the message; on Kafka its offset is committed.

FastStream's default policies lose messages: on Kafka they acknowledge before handling, on RabbitMQ
they reject for good on an error. Both are refused (I5): call `check_policies(broker)` when the
application starts.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from postroom.engine.consumer.messages import to_record
from postroom.engine.consumer.size_limit import size_of
from postroom.errors import ConfigError, EventError, MissingExtraError
from postroom.event import MAX_NAME_BYTES
from postroom.inbox import Inbox
from postroom.model.foreign_messages import Names
from postroom.model.incoming import Incoming
from postroom.model.message_id import MissingId
from postroom.record import Record
from postroom.settings import ConsumerSettings
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

_MAX_BYTES = ConsumerSettings().max_bytes


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
    max_bytes: int = _MAX_BYTES,
) -> Callable[..., BaseMiddleware[Any, Any]]:
    """Return a middleware that runs subscribers in transactions and skips duplicates.

    consumer      first part of the consumer name in the inbox. Different applications that share a
                  database need different names
    transaction   a factory of async context managers that yield an open transaction, commit on a
                  clean exit and roll back on an exception
    name          context name of the transaction in a subscriber: `Context("tx")`
    missing_id    as in ConsumerSettings
    prefix, schema    of the inbox table, as in Inbox
    id_header, type_header    headers in which foreign senders put id and type of a message
    max_bytes     a larger message is rejected, as in ConsumerSettings
    """
    ConsumerSettings(missing_id=missing_id, max_bytes=max_bytes)  # raises for an invalid value
    Inbox(consumer, prefix=prefix, schema=schema)  # raises for an invalid name
    scoped, names, failures = qualify(prefix, schema), Names(id_header, type_header), Failures()

    class InboxMiddleware(BaseMiddleware[Any, Any]):
        """Accepts a message in the transaction of its subscriber."""

        async def consume_scope(self, call_next: AsyncFuncAny, msg: StreamMessage[Any]) -> Any:
            subscriber = self.context.get("handler_")
            _refuse_policy(subscriber)
            message = _incoming(msg, names)
            record = await _read(message, missing_id, max_bytes)
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
    """Raise ConfigError for a subscriber that could acknowledge messages that were not handled.

    Call it before the broker starts: a message acknowledged too early cannot be recovered.
    """
    for subscriber in broker.subscribers:
        _refuse_policy(subscriber)


def _refuse_policy(subscriber: Any) -> None:
    policy = getattr(subscriber, "ack_policy", None)
    if policy is not AckPolicy.NACK_ON_ERROR:
        raise ConfigError(
            f"a subscriber has ack_policy={policy}: it can acknowledge a message that was not "
            "handled. Use ack_policy=AckPolicy.NACK_ON_ERROR"
        )


def inbox_name(consumer: str, subscriber: Any) -> str:
    """Return the consumer name of a FastStream subscriber in the inbox."""
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


async def _read(message: Incoming, missing_id: MissingId, max_bytes: int) -> Record:
    """Return the event of a message; reject one that is too large, without an id or invalid."""
    problem, size = message.problem, size_of(message)
    if size > max_bytes:
        problem = f"it has {size} bytes, more than max_bytes ({max_bytes})"
    if not problem:
        try:
            return to_record(message, missing_id)
        except EventError as error:
            problem = str(error)
    raise await rejection(message, problem)


def _incoming(message: StreamMessage[Any], names: Names) -> Incoming:
    """Read the driver's message: FastStream generates ids for messages without one."""
    raw = message.raw_message
    if isinstance(raw, (list, tuple)):
        raise ConfigError("an inbox does not support batches; remove batch=True of the subscriber")
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
