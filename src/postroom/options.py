"""The options that constructors take by name, for editors and type checkers.

Each corresponds to the settings class of the same name, whose docstring explains the options:
`RelayOptions` to `RelaySettings`. A test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from postroom.model.durations import Seconds
from postroom.model.message_id import MissingId
from postroom.retry import RetryPolicy

Mode = Literal["direct", "durable"]
Synchronous = Literal["normal", "full", "extra"]
SslMode = Literal["required", "verify_ca", "verify_identity"]
Compression = Literal["snappy", "lz4", "zstd", "gzip", "none"]
Delivery = Literal["idempotent", "transactional"]
QueueType = Literal["classic", "quorum"]


# -- relays and consumers ---------------------------------------------------------------------
class BusOptions(TypedDict, total=False):
    """Options of a Bus's relays: RelaySettings without the stream."""

    batch_size: int
    max_batch_size: int
    max_batch_bytes: int
    poll_seconds: Seconds
    retry: RetryPolicy
    lease_seconds: Seconds
    keep_done_seconds: Seconds
    keep_dead_seconds: Seconds | None
    dedup_seconds: Seconds
    prune_seconds: Seconds
    publish_seconds: Seconds
    stop_seconds: Seconds
    groups: int
    linger_seconds: Seconds
    suspect_limit: int
    misconfigured_seconds: Seconds
    outage_seconds: Seconds
    max_outage_seconds: Seconds
    name: str


class RelayOptions(BusOptions, total=False):
    """Options of a Relay; see RelaySettings."""

    stream: str


class ConsumerOptions(TypedDict, total=False):
    """Options of a Consumer; see ConsumerSettings."""

    name: str
    mode: Mode
    missing_id: MissingId
    unhandled: Literal["dead", "ignore"]
    retry: RetryPolicy
    max_in_flight: int
    max_bytes: int
    max_stored: int
    batch: int
    stop_seconds: Seconds
    lease_seconds: Seconds
    misconfigured_seconds: Seconds
    outage_seconds: Seconds
    max_outage_seconds: Seconds
    dedup_seconds: Seconds
    keep_dead_seconds: Seconds | None
    suspect_limit: int


# -- stores -----------------------------------------------------------------------------------
class SqliteOptions(TypedDict, total=False):
    """Options of a SqliteStore; see its SqliteSettings."""

    prefix: str
    busy_seconds: Seconds
    synchronous: Synchronous


class PostgresOptions(TypedDict, total=False):
    """Options of a PostgresStore; see its PostgresSettings."""

    prefix: str
    schema: str | None
    application_name: str
    connect_seconds: Seconds
    statement_seconds: Seconds
    lock_seconds: Seconds
    pool_size: int
    notify: bool


class MysqlOptions(TypedDict, total=False):
    """Options of a MysqlStore; see its MysqlSettings."""

    prefix: str
    pool_size: int
    connect_seconds: Seconds
    statement_seconds: Seconds
    lock_seconds: Seconds
    socket: str | None
    ssl_mode: SslMode | None
    ssl_ca: str | None
    ssl_cert: str | None
    ssl_key: str | None


class MongoOptions(TypedDict, total=False):
    """Options of a MongoStore; see its MongoSettings."""

    database: str | None
    prefix: str
    transactions: bool | None
    embedded: Sequence[str]


class StoreOptions(SqliteOptions, total=False):
    """Options of `open_store`: those of all stores. A store refuses options it does not have."""

    # of PostgreSQL and MySQL
    schema: str | None
    application_name: str
    connect_seconds: Seconds
    statement_seconds: Seconds
    lock_seconds: Seconds
    pool_size: int
    notify: bool
    socket: str | None
    ssl_mode: SslMode | None
    ssl_ca: str | None
    ssl_cert: str | None
    ssl_key: str | None
    # of MongoDB
    database: str | None
    transactions: bool | None
    embedded: Sequence[str]


# -- brokers and sources ----------------------------------------------------------------------
class KafkaOptions(TypedDict, total=False):
    """Options of a KafkaBroker; see its KafkaSettings."""

    topic: str | None
    key: Literal["key", "id"]
    compression: Compression
    create_topics: bool
    partitions: int | None
    replication: int | None
    linger_seconds: Seconds
    batch_bytes: int
    publish_seconds: Seconds
    answer_seconds: Seconds
    delivery: Delivery
    transactional_prefix: str
    cloudevents: str | None
    config: Mapping[str, Any]


class _RabbitLinkOptions(TypedDict, total=False):
    exchange: str
    exchange_type: str
    declare: bool
    queue_type: QueueType
    single: bool
    bindings: tuple[str, ...] | None
    connect_seconds: Seconds
    heartbeat_seconds: Seconds
    cafile: str | None
    certfile: str | None
    keyfile: str | None
    verify: bool


class RabbitOptions(_RabbitLinkOptions, total=False):
    """Options of a RabbitBroker; see its RabbitSettings."""

    exchange_from: Literal["topic"] | None
    routing_key: str | None
    queue: str | None
    confirm_seconds: Seconds
    app_id: str
    cloudevents: str | None


class KafkaSourceOptions(TypedDict, total=False):
    """Options of a KafkaSource; see its KafkaSourceSettings."""

    topic: str | Sequence[str]
    group: str
    start: Literal["earliest", "latest"]
    id_header: str
    type_header: str
    config: Mapping[str, Any]


class RabbitSourceOptions(_RabbitLinkOptions, total=False):
    """Options of a RabbitSource; see its RabbitSourceSettings."""

    queue: str
    prefetch: int
    id_header: str
    type_header: str
