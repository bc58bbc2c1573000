"""RabbitMQ as a source: a queue, consumed with manual acknowledgements."""

from postroom.sources.rabbitmq.source import RabbitSource

__all__ = ["RabbitSource"]
