"""postroom's `run` command beside Debezium, from PostgreSQL to the same Kafka.

Both send to topics of the same settings. The rate is taken where the messages arrive, from the
first to the last of a backlog, so that nobody's start counts; Debezium runs all the time and is
paused while the backlog is written. The latency is from a commit's return to the consumer, of
events that come one by one. Memory is what the process holds after it all.
"""

import json
import random
import statistics
import threading
import time
import uuid

import psycopg
from confluent_kafka import Consumer, TopicPartition

from bench import connect, relay
from bench.grounds import open_ground
from bench.grounds.events import PAYLOAD_TEXT
from bench.latency import percentile
from bench.result import beside, versions
from bench.rounds import Contest, alternate, say
from bench.sending import PARTITIONS, KafkaTopic
from postroom import Event, SyncOutbox
from postroom.stores.postgres import PostgresNotifier
from tests.servers.postgres import Postgres18
from tests.servers.programs import KAFKA_VERSION

OURS = "postroom run"
THEIRS = f"Debezium {connect.DEBEZIUM_VERSION}"
GAP_SECONDS = (0.03, 0.1)
PATIENCE_SECONDS = 180
STEP = 100
MAKE = f"""
CREATE TABLE {connect.TABLE} (id uuid PRIMARY KEY, aggregatetype text NOT NULL,
aggregateid text NOT NULL, type text NOT NULL, payload text NOT NULL)
"""
FILL = f"""
INSERT INTO {connect.TABLE} SELECT gen_random_uuid(), %s, 'k' || n %% 1000, 'bench', %s
FROM generate_series(%s::int, %s::int) AS n
"""


class Arrivals:
    """Reads a topic from its end on, and notes when each message came."""

    def __init__(self, topic):
        self._consumer = Consumer(
            {
                "bootstrap.servers": topic.servers, "group.id": str(uuid.uuid4()),
                "enable.auto.commit": False, "log_level": 0,
            }
        )  # fmt: skip
        places = []
        for number in range(PARTITIONS):
            place = TopicPartition(topic.name, number)
            place.offset = self._consumer.get_watermark_offsets(place, timeout=30)[1]
            places.append(place)
        self._consumer.assign(places)

    def rate(self, count):
        """Return how many came in a second, from the first of so many to the last."""
        first = last = None
        left, deadline = count, time.monotonic() + PATIENCE_SECONDS
        while left > 0:
            found = self._consumer.consume(500, 0.05)
            if found:
                last = time.perf_counter()
                left -= len(found)
                if first is None:
                    first, counted = last, left  # what came with the first took no time
            elif time.monotonic() > deadline:
                raise RuntimeError(f"{left} messages did not arrive")
        return counted / (last - first)

    def each(self, count):
        """Return the payloads of so many, with the time at which each came."""
        found, deadline = [], time.monotonic() + PATIENCE_SECONDS
        while len(found) < count:
            message = self._consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append((json.loads(message.value()), time.time()))
            elif time.monotonic() > deadline:
                raise RuntimeError(f"{count - len(found)} messages did not arrive")
        return found

    def close(self):
        self._consumer.close()


class Ours:
    """The relay in a process of its own, as one runs it."""

    def __init__(self, ground, topic, yard):
        self._ground, self.topic, self._events = ground, topic, yard.size(100_000, 10_000)
        self._url = f"kafka://{topic.servers}?topic={topic.name}"
        self.memory = []

    def backlog(self):
        self._ground.reset("plain")

    def rate(self):
        arrivals = Arrivals(self.topic)
        with relay.running(self._ground.url, self._url) as process:
            rate = arrivals.rate(self._events)
            self.memory.append(connect.resident_mb(process.pid))
        arrivals.close()
        return rate

    def latency(self, count):
        arrivals = Arrivals(self.topic)
        notifier = PostgresNotifier(self._ground.url)
        outbox = SyncOutbox(notifier=notifier)

        def add(connection, n):
            outbox.add(connection, Event("bench", {"n": n}, key=f"k{n}", topic="bench"))

        with relay.running(self._ground.url, self._url):
            one_by_one(arrivals, self._ground.url, 3, add, outbox.kick)  # now it is connected
            found = one_by_one(arrivals, self._ground.url, count, add, outbox.kick)
        notifier.close()
        arrivals.close()
        return found


class Theirs:
    """Debezium, which runs all the time."""

    def __init__(self, url, topic, server, yard):
        self._url, self.topic, self._server = url, topic, server
        self._events = yard.size(100_000, 10_000)
        self.memory = []

    def backlog(self):
        self._server.pause()
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(f"TRUNCATE {connect.TABLE}")
            for first in range(1, self._events + 1, STEP):
                words = (self.topic.name, PAYLOAD_TEXT, first, first + STEP - 1)
                connection.execute(FILL, words)
            connection.execute("CHECKPOINT")

    def rate(self):
        arrivals = Arrivals(self.topic)
        self._server.resume()
        rate = arrivals.rate(self._events)
        self.memory.append(connect.resident_mb(self._server.pids[0]))
        arrivals.close()
        return rate

    def latency(self, count):
        arrivals = Arrivals(self.topic)

        def add(connection, n):
            connection.execute(
                f"INSERT INTO {connect.TABLE} VALUES (%s, %s, %s, 'bench', %s)",
                (uuid.uuid4(), self.topic.name, f"k{n}", json.dumps({"n": n})),
            )

        found = one_by_one(arrivals, self._url, count, add)
        arrivals.close()
        return found


def one_by_one(arrivals, url, count, add, told=lambda: None):
    """Commit events with pauses; returns the milliseconds to the consumer of each."""
    committed = {}

    def write():
        pauses = random.Random(1)
        with psycopg.connect(url) as connection:
            for n in range(count):
                add(connection, n)
                connection.commit()
                committed[n] = time.time()
                told()
                time.sleep(pauses.uniform(*GAP_SECONDS))

    writer = threading.Thread(target=write)
    writer.start()
    found = arrivals.each(count)
    writer.join()
    return [1_000 * (at - committed[payload["n"]]) for payload, at in found]


def debezium(yard):
    ground, kafka = open_ground(yard.server("postgres18").url), yard.server("kafka")
    # Its own server: a slot reads all that is written, and would work while a relay does.
    captured = yard.enter(Postgres18())
    with psycopg.connect(captured.url, autocommit=True) as connection:
        connection.execute(MAKE)
    say("starting Kafka Connect with Debezium")
    server = yard.enter(connect.Connect(captured.url, kafka.address))
    theirs = Theirs(captured.url, KafkaTopic(kafka.address), server, yard)
    ours = Ours(ground, KafkaTopic(kafka.address), yard)
    events = yard.size(100_000, 10_000)
    ground.prepare("plain", events, 1_000)
    try:
        for number in range(yard.size(3, 1)):
            say(f"warming up Debezium, {number + 1}")
            theirs.backlog()
            say(f"{theirs.rate():,.0f}/s")
        theirs.memory.clear()
        rates = alternate(
            [Contest(OURS, ours.rate, ours.backlog), Contest(THEIRS, theirs.rate, theirs.backlog)],
            yard.rounds,
        )
        times = {OURS: [], THEIRS: []}
        for _ in range(yard.rounds):
            for name, one in ((OURS, ours), (THEIRS, theirs)):
                times[name].append(sorted(one.latency(yard.size(100, 20))))
    finally:
        ground.close()
    medians = {name: [statistics.median(one) for one in found] for name, found in times.items()}
    fields = {
        "suite": "peers", "part": "debezium", "batch": 1, "quick": yard.quick,
        "versions": versions(
            store=ground.version, kafka=KAFKA_VERSION, debezium=connect.DEBEZIUM_VERSION
        ),
    }  # fmt: skip
    memory = {OURS: ours.memory, THEIRS: theirs.memory}
    worst = "p99 " + ", ".join(
        f"{name} {percentile(found, 0.99):.1f} ms" for name, found in times.items()
    )
    return [
        beside(rates, OURS, THEIRS, events=events, **fields,
               note="backlog drained, first to last message at the consumer, keep_done_seconds=0; "
               "Debezium with batches of 4096, warm, with events that it read before the start"),
        beside(medians, OURS, THEIRS, unit="ms", events=0, **fields,
               note=f"commit to consumer, median; {worst}"),
        beside(memory, OURS, THEIRS, unit="MB", events=events, **fields, note="resident memory"),
    ]  # fmt: skip
