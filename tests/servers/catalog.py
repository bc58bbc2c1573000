"""Every server by its name, as fixtures, variables and the command line know it."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.servers.kafka import Kafka, KafkaCluster
from tests.servers.mariadb import MariaDB
from tests.servers.mongo import Mongo, MongoCluster
from tests.servers.postgres import Postgres, Postgres18
from tests.servers.process import Running
from tests.servers.rabbitmq import RabbitMQ, RabbitMQ4


@dataclass(frozen=True)
class Kind:
    """A kind of server: what makes one, and a line about it."""

    make: Callable[..., Running]
    about: str


SERVERS = {
    "postgres": Kind(Postgres, "PostgreSQL 15"),
    "postgres18": Kind(Postgres18, "PostgreSQL 18"),
    "mariadb": Kind(MariaDB, "MariaDB 10.11"),
    "mongo": Kind(Mongo, "MongoDB 6.0, a replica set of one"),
    "mongo_cluster": Kind(MongoCluster, "MongoDB 6.0, a replica set of three, quick to elect"),
    "mongo_standalone": Kind(
        lambda **options: Mongo(replica_set=None, **options),
        "MongoDB 6.0 alone: no transactions, no change streams",
    ),
    "kafka": Kind(Kafka, "Apache Kafka 4.1, one broker"),
    "kafka_cluster": Kind(KafkaCluster, "Apache Kafka 4.1, three brokers"),
    "rabbitmq": Kind(RabbitMQ, "RabbitMQ 3.10"),
    "rabbitmq4": Kind(RabbitMQ4, "RabbitMQ 4.0, for make nightly"),
}
