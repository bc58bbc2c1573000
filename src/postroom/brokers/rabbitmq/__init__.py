"""RabbitMQ as a destination: confirmed, persistent, mandatory; one in flight per key."""

from postroom.brokers.rabbitmq.broker import RabbitBroker
from postroom.brokers.rabbitmq.settings import RabbitSettings

__all__ = ["RabbitBroker", "RabbitSettings"]
