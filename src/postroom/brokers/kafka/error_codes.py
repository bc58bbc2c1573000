"""The error codes of librdkafka itself, as opposed to those of Kafka's brokers.

confluent-kafka documents them, and spells them with an underscore: they are not private.
"""

from __future__ import annotations

from confluent_kafka import KafkaError

ALL_BROKERS_DOWN = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - librdkafka
AUTHENTICATION = KafkaError._AUTHENTICATION  # noqa: SLF001 - librdkafka
BAD_COMPRESSION = KafkaError._BAD_COMPRESSION  # noqa: SLF001 - librdkafka
BAD_MSG = KafkaError._BAD_MSG  # noqa: SLF001 - librdkafka
FAIL = KafkaError._FAIL  # noqa: SLF001 - librdkafka
FENCED = KafkaError._FENCED  # noqa: SLF001 - librdkafka
INVALID_ARG = KafkaError._INVALID_ARG  # noqa: SLF001 - librdkafka
INVALID_DIFFERENT_RECORD = KafkaError._INVALID_DIFFERENT_RECORD  # noqa: SLF001 - librdkafka
PURGE_INFLIGHT = KafkaError._PURGE_INFLIGHT  # noqa: SLF001 - librdkafka
QUEUE_FULL = KafkaError._QUEUE_FULL  # noqa: SLF001 - librdkafka
STATE = KafkaError._STATE  # noqa: SLF001 - librdkafka
TIMED_OUT = KafkaError._TIMED_OUT  # noqa: SLF001 - librdkafka
UNKNOWN_PARTITION = KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 - librdkafka
UNKNOWN_TOPIC = KafkaError._UNKNOWN_TOPIC  # noqa: SLF001 - librdkafka
UNSUPPORTED_FEATURE = KafkaError._UNSUPPORTED_FEATURE  # noqa: SLF001 - librdkafka
