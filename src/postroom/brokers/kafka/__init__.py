"""Apache Kafka, by confluent-kafka."""

from postroom.brokers.kafka.broker import KafkaBroker

__all__ = ["KafkaBroker"]
