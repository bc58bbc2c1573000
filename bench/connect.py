"""Kafka Connect with Debezium's connector for PostgreSQL and its outbox event router.

Its settings are those of Connect's own start script and of Debezium's guide for outboxes, tuned as
far as that is documented: a short poll, big batches, no snapshot.
"""

import json
import shutil
import urllib.request
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers import install, programs
from tests.servers.process import Server, free_port

DEBEZIUM_VERSION = "3.3.1.Final"
TABLE = "debezium_outbox"
NAME = "outbox"
ARTIFACTS = (
    ("org.apache.kafka", "connect-runtime", programs.KAFKA_VERSION),
    ("io.debezium", "debezium-connector-postgres", DEBEZIUM_VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
JAVA = (
    "-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip


def jars():
    """Return the folder of jars; fetch them when they are not there yet."""
    name = f"debezium-{DEBEZIUM_VERSION}-{programs.KAFKA_VERSION}"
    folder = programs.cache_folder() / name
    with install.locked():
        if not folder.exists():
            if not shutil.which("mvn"):
                install.install_packages(["maven"])
            install.download(name, lambda into: install.fetch_artifacts(ARTIFACTS, into))
    return folder


class Connect(Server):
    """One worker with one connector, from a table of PostgreSQL to a topic of Kafka."""

    name = "connect"

    def __init__(self, postgres_url, kafka_address, **options):
        super().__init__(**options)
        self.port = free_port()
        self._postgres = urlsplit(postgres_url)
        self._kafka = kafka_address
        self._jars = jars()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def prepare(self):
        worker = {
            "bootstrap.servers": self._kafka,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.file.filename": self.folder / "offsets",
            "offset.flush.interval.ms": 5000,
            "listeners": self.url,
        }
        connector = {
            "name": NAME,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "tasks.max": 1,
            "database.hostname": self._postgres.hostname,
            "database.port": self._postgres.port,
            "database.user": self._postgres.username,
            "database.password": "none",
            "database.dbname": self._postgres.path.removeprefix("/"),
            "topic.prefix": "bench",
            "plugin.name": "pgoutput",
            "slot.name": "bench_debezium",
            "publication.name": "bench_debezium",
            "publication.autocreate.mode": "filtered",
            "table.include.list": f"public.{TABLE}",
            "snapshot.mode": "no_data",
            "tombstones.on.delete": "false",
            "poll.interval.ms": 10,
            "max.batch.size": 4096,
            "max.queue.size": 16384,
            "transforms": "outbox",
            "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
            "transforms.outbox.route.topic.replacement": "${routedByValue}",
            "transforms.outbox.table.fields.additional.placement": "type:header:type",
        }
        for name, settings in (("worker", worker), ("connector", connector)):
            lines = "".join(f"{key}={value}\n" for key, value in settings.items())
            self.write(f"{name}.properties", lines)

    def command(self):
        program = "org.apache.kafka.connect.cli.ConnectStandalone"
        files = [self.folder / f"{name}.properties" for name in ("worker", "connector")]
        java = [programs.program("java"), *JAVA, f"-Djava.io.tmpdir={self.folder}"]
        return [*java, "-cp", f"{self._jars}/*", program, *files]

    def answers(self):
        """It runs, and its task, too."""
        status = self.ask(f"/connectors/{NAME}/status")
        tasks = [task["state"] for task in status["tasks"]]
        if "FAILED" in tasks:
            raise RuntimeError(status)
        return tasks == ["RUNNING"] and status["connector"]["state"] == "RUNNING"

    def pause(self):
        self.ask(f"/connectors/{NAME}/pause", "PUT")
        self.wait_for(lambda: self._task() == "PAUSED", "the connector's pause")

    def resume(self):
        self.ask(f"/connectors/{NAME}/resume", "PUT")

    def _task(self):
        return self.ask(f"/connectors/{NAME}/status")["tasks"][0]["state"]

    def ask(self, path, method="GET"):
        request = urllib.request.Request(self.url + path, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def resident_mb(pid):
    """What a process and its children hold in memory now; shared pages count once for each."""
    total = 0.0
    with suppress(OSError):  # it, or one of its threads, has just ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1]) / 1024
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                total += resident_mb(child)
    return total
