"""Brokers: destinations that a relay publishes to, behind the port `postroom.broker`.

kafka        Apache Kafka, by confluent-kafka
rabbitmq     RabbitMQ, by aiormq (of aio-pika)
memory       topics in memory with faults on demand, and a broker that drops everything
cloudevents  an event as a CloudEvent, for the brokers that send them
outages      the error of an unreachable broker, and what it means for a batch

The relay calls `publish(batch, reporter)`. The broker turns each record into a message, sends it,
and reports one outcome for each record; a record without a report is unknown. Handlers are a
broker, too: `postroom.engine.handlers`. Every broker passes `postroom.testing.broker`.
"""

from postroom.brokers.memory import MemoryBroker, Message, NullBroker

__all__ = ["MemoryBroker", "Message", "NullBroker"]
