"""Apache Kafka without ZooKeeper: one broker, or three."""

import base64
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.servers import programs
from tests.servers.cluster import Cluster
from tests.servers.keeper import signal_all
from tests.servers.process import (
    READY_SECONDS,
    Server,
    ServerError,
    free_port,
    listens,
    wait_until,
)


def new_cluster_id() -> str:
    """Make an id in the form that Kafka uses."""
    while True:
        made = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        if not made.startswith("-"):  # Kafka's tool would take it for an option
            return made


class Kafka(Server):
    """One broker that is its own controller.

    `advertise` is the port that clients are told to use: that of a proxy in front of the broker.
    """

    name = "kafka"

    def __init__(self, *, advertise: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.port = free_port()
        self.controller_port = free_port()
        self.advertise = advertise or self.port
        self.node = 1
        self.cluster_id = new_cluster_id()
        self.voters = [self]

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    @property
    def configuration(self) -> Path:
        """The broker's file of settings."""
        return self.folder / "server.properties"

    def prepare(self) -> None:
        voters = ",".join(f"{one.node}@127.0.0.1:{one.controller_port}" for one in self.voters)
        copies = len(self.voters)
        settings = {
            "process.roles": "broker,controller",
            "node.id": self.node,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{self.address},"
            f"CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.advertise}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self.folder / "data",
            "default.replication.factor": copies,
            "min.insync.replicas": 2 if copies > 1 else 1,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 5,  # the default of 50 makes the first consumer wait
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": 2 if copies > 1 else 1,
            "transaction.state.log.num.partitions": 5,
            # A dead broker is missed after 4 s and not after 9, so that a restart is quick too.
            "broker.session.timeout.ms": 4000,
            "broker.heartbeat.interval.ms": 500,
            "group.initial.rebalance.delay.ms": 0,
        }
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        self.write("server.properties", lines)
        tool = self.java("kafka.tools.StorageTool", "format", "-t", self.cluster_id)
        self.run([*tool, "-c", self.configuration])

    def command(self) -> Sequence[str | Path]:
        return self.java("kafka.Kafka", self.configuration)

    def java(self, *words: str | Path) -> list[str | Path]:
        """Give the command line of a Java program of Kafka's."""
        # Tuned to start quickly on few cores; and no file in the machine's temporary folder.
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
        options += [f"-Djava.io.tmpdir={self.folder}", "-cp", f"{programs.kafka_jars()}/*"]
        return [programs.program("java"), *self.classes(), *options, *words]

    def classes(self) -> list[str]:
        """Say where loaded classes are kept. Java ignores them if they do not fit any more."""
        return [f"-XX:SharedArchiveFile={classes_file()}"] if classes_file().exists() else []

    def answers(self) -> bool:
        return listens(self.port) and brokers(self.address) == len(self.voters)


class KafkaCluster(Cluster):
    """Three brokers; a topic is written to three, and a write is safe on two."""

    def __init__(self, **options: Any) -> None:
        self.members = [Kafka(**options) for _ in range(3)]
        for node, member in enumerate(self.members, 1):
            member.node = node
            member.cluster_id = self.members[0].cluster_id
            member.voters = self.members
        super().__init__(self.members)

    @property
    def url(self) -> str:
        return "kafka://" + ",".join(member.address for member in self.members)

    def leader(self) -> Kafka:
        """The broker that leads most partitions of the topics there are."""
        topics = admin(self.url.removeprefix("kafka://")).list_topics(timeout=5).topics.values()
        leads = Counter(one.leader for topic in topics for one in topic.partitions.values())
        return max(self.members, key=lambda member: leads[member.node])


class Recorded(Kafka):
    """A broker that writes down, at its end, the classes that it has loaded."""

    def __init__(self, into: Path) -> None:
        super().__init__()
        self._into = into

    def command(self) -> Sequence[str | Path]:
        java, *rest = super().command()
        return [java, f"-XX:ArchiveClassesAtExit={self._into}", *rest]

    def classes(self) -> list[str]:
        return []

    def end(self) -> None:
        """End as if asked to."""
        signal_all(self.processes, signal.SIGTERM)
        wait_until(lambda: not self.pids, within=READY_SECONDS, what="the end of a broker")


def classes_file() -> Path:
    """Give the file with the classes that a broker loads."""
    return programs.kafka_jars() / "classes.jsa"


def keep_classes() -> None:
    """Keep the classes that a broker loads: the next ones start in half the time."""
    if classes_file().exists():
        return
    with tempfile.TemporaryDirectory(dir=programs.kafka_jars()) as folder:
        made = Path(folder) / "classes.jsa"
        try:
            with Recorded(made) as broker:
                broker.end()
            made.rename(classes_file())
        except (ServerError, OSError) as error:
            print(f"Kafka's classes are not kept, its starts take longer: {error}", file=sys.stderr)


def brokers(address: str) -> int:
    """Count the brokers that this one knows."""
    return len(admin(address).list_topics(timeout=2).brokers)


def admin(address: str) -> Any:
    """A client that asks, and does not complain."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": address, "log_level": 0})
