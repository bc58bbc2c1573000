"""Apache Kafka as a source, by confluent-kafka.

A message passes the modules in this order:

source    the port; `settings` are its options
poller    the thread that polls, pauses partitions when enough is in hand, and commits offsets
cluster   what the poller asks the cluster: committed offsets, ends of partitions, ids of topics
missing_topics   topics that do not exist yet
message   a Kafka record as the message that every source returns
starts    where a new group starts: committed before anything is read
offsets   the highest offset of a partition up to which every message is done
commits   which offsets are committed now; refused ones only after a growing pause
"""

from postroom.sources.kafka.source import KafkaSource

__all__ = ["KafkaSource"]
