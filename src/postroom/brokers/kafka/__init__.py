"""Apache Kafka as a destination, by confluent-kafka.

A batch passes the modules in this order:

broker          the port; `settings` are its options
topics          looks up topics and their limits; knows whether the cluster is unreachable
sessions        picks a producer by batch size; small batches for topics that refused large ones
session         one idempotent producer, from its start to its first error
lane_producers  in transactional mode instead: one producer for each lane
message         a record as key, headers and value; `partitions` chooses where an event asks for it
publish_call    one call of `publish`: what was sent and what came back, key by key
receipts        where a confirmed message is, from its delivery report
verdicts        what an error of Kafka means for an event; `error_codes` are librdkafka's own

`log` routes librdkafka's log to Python's logging; `checks` is for `postroom doctor`.
"""

from postroom.brokers.kafka.broker import KafkaBroker

__all__ = ["KafkaBroker"]
