"""What must be there before events can go: declared, or only looked for."""

from __future__ import annotations

from aiormq.abc import AbstractChannel

from postroom.brokers.rabbitmq.options import RabbitOptions


async def declare(channel: AbstractChannel, options: RabbitOptions, exchange: str) -> None:
    """Declare an exchange, the queue and its bindings: all durable. Doing it again is no change.

    What is there with other properties is an error, and is left as it is.
    """
    if exchange:
        await channel.exchange_declare(exchange, exchange_type=options.exchange_type, durable=True)
    if options.queue is not None:
        await channel.queue_declare(
            options.queue, durable=True, arguments={"x-queue-type": options.queue_type}
        )
    if options.queue is not None and exchange:
        for key in options.binding_keys():
            await channel.queue_bind(options.queue, exchange, key)


async def check(channel: AbstractChannel, options: RabbitOptions, exchange: str) -> None:
    """Look whether exchange and queue are there."""
    if exchange:
        await channel.exchange_declare(exchange, passive=True)
    if options.queue is not None:
        await channel.queue_declare(options.queue, passive=True)
