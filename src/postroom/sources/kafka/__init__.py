"""Apache Kafka as a source, by confluent-kafka."""

from postroom.sources.kafka.source import KafkaSource

__all__ = ["KafkaSource"]
