"""RabbitMQ as a destination: confirmed, persistent, mandatory; one in flight per key."""

from postroom.brokers.rabbitmq.broker import RabbitBroker
from postroom.brokers.rabbitmq.options import RabbitOptions

__all__ = ["RabbitBroker", "RabbitOptions"]
