"""RabbitMQ as a source: one queue, consumed with manual acknowledgements.

source    the port: connects, declares the queue if asked, consumes, acknowledges, reconnects.
          `settings` are its options
message   an AMQP message as the message that every source returns

Connections, topology and the tolerant decoder are those of `postroom.brokers.rabbitmq`.
"""

from postroom.sources.rabbitmq.source import RabbitSource

__all__ = ["RabbitSource"]
