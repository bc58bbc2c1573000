"""The inbox around FastStream's own subscribers, for RabbitMQ and Kafka (confluent).

    broker = RabbitBroker(url, middlewares=[inbox_middleware("payments", sessions.begin)])

    @broker.subscriber("payments", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def pay(order: Order, tx: Annotated[AsyncSession, Context("tx")]): ...

The transaction is opened before the subscriber and committed after it; `accept` comes first, and a
repeat is not handed on. FastStream acknowledges when the middleware has returned: after the commit.

Its defaults lose messages. Kafka's acknowledges first; RabbitMQ's rejects on an error, for good.
Both are refused (I5): call `check_policies(broker)` when the application starts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from postroom.consumers.letter import to_record
from postroom.errors import ConfigError, MissingExtraError
from postroom.foreign import NO_NAMES
from postroom.inbox import Inbox
from postroom.message_id import MissingId
from postroom.source import Incoming
from postroom.transactions.sql import DEFAULT_PREFIX

try:
    from faststream import AckPolicy, BaseMiddleware
except ImportError as error:
    raise MissingExtraError("faststream", "faststream") from error

if TYPE_CHECKING:
    from faststream._internal.basic_types import AsyncFuncAny
    from faststream._internal.context.repository import ContextRepo
    from faststream.message import StreamMessage

Factory = Callable[[], AbstractAsyncContextManager[Any]]


def inbox_middleware(
    consumer: str,
    transaction: Factory,
    *,
    name: str = "tx",
    missing_id: MissingId = "hash",
    prefix: str = DEFAULT_PREFIX,
) -> Callable[..., BaseMiddleware[Any, Any]]:
    """Return a middleware that runs subscribers in transactions, each message once.

    consumer      the name by which the inbox remembers
    transaction   a factory of async context managers that yield an open transaction, commit on a
                  clean exit and roll back on an exception
    name          under which a subscriber finds the transaction: `Context("tx")`
    missing_id    as in ConsumerSettings
    """
    inbox = Inbox(consumer, prefix=prefix)

    class InboxMiddleware(BaseMiddleware[Any, Any]):
        """Accepts a message in the transaction of its subscriber."""

        async def consume_scope(self, call_next: AsyncFuncAny, msg: StreamMessage[Any]) -> Any:
            _refuse_policy(self.context.get("handler_"))
            record = to_record(_incoming(msg), missing_id)
            async with transaction() as tx:
                if not await inbox.accept(tx, record):
                    return None  # a repeat: nothing to do, and it is acknowledged
                with self.context.scope(name, tx):
                    return await call_next(msg)

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


def _incoming(message: StreamMessage[Any]) -> Incoming:
    """Read the driver's own message: FastStream makes up ids where there are none."""
    raw = message.raw_message
    if isinstance(raw, (list, tuple)):
        raise ConfigError("an inbox takes one message at a time: a subscriber without batch=True")
    if hasattr(raw, "routing_key"):  # aio-pika
        from postroom.consumers.amqp import to_text, with_properties

        return with_properties(
            Incoming(raw.routing_key or "", raw.body, to_text(raw.headers or {})),
            NO_NAMES,
            message_id=raw.message_id,
            kind=raw.type,
            correlation_id=raw.correlation_id,
            content_type=raw.content_type,
        )
    from postroom.consumers.kafka_message import incoming

    return incoming(raw)
