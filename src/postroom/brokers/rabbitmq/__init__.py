"""RabbitMQ as a destination. Messages are confirmed, persistent and mandatory.

A batch passes the modules in this order:

broker        the port; `settings` are its options
connection    one AMQP connection with time limits; dropped when it does not answer
topology      declares or checks exchange and queue; consumers declare by the same functions
channels      channels in confirm mode
publish_call  one call of `publish`: many keys in flight, one message of each
message       a record as address, properties and headers; `cloudevents` adds a CloudEvent's
frames        encodes a message as AMQP frames

tolerant_reader  decodes deliveries to consumers with invalid properties, by `content_header`;
                 pamqp would close the connection

`log` lowers aiormq's log lines about outages; `checks` is for `postroom doctor`.
"""

from postroom.brokers.rabbitmq.broker import RabbitBroker
from postroom.brokers.rabbitmq.settings import RabbitSettings

__all__ = ["RabbitBroker", "RabbitSettings"]
