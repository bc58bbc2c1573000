"""postroom beside other packages, beside workers written by hand, and beside Debezium.

Each result is postroom's figure, and as its reference the peer's, from the same rounds.
"""

import statistics
import time
from functools import partial

from bench import relay, workers
from bench.grounds import open_ground
from bench.peers.catalog import PEERS
from bench.peers.environment import NoPythonError, pinned
from bench.peers.race import Racer, RacerError
from bench.result import beside, versions
from bench.rounds import Contest, alternate, say
from bench.sending import KafkaTopic, RabbitQueue
from bench.suites.debezium import debezium
from postroom.brokers.memory import NullBroker
from tests.servers.install import InstallError
from tests.servers.programs import KAFKA_VERSION

HAND_BATCH = 100
BY_HAND = f"by hand, SKIP LOCKED, batch {HAND_BATCH}"
NO_ORDER = "no order of keys after a failure or with two workers"


def packages(yard):
    """All peers on PostgreSQL with a publisher that does nothing."""
    url = yard.server("postgres18").url
    ground = open_ground(url)
    events = yard.size(20_000, 4_000)
    ground.prepare("plain", events, 1_000)
    chosen = [
        Contest(
            name, partial(to_last_publish, ground, yard.batch, keep_done, events),
            lambda: ground.reset("plain"),
        )
        for name, keep_done in ((relay.OURS, 0), (relay.DEFAULT, 86_400))
    ]  # fmt: skip
    table = workers.HandTable(url)
    chosen.append(Contest(BY_HAND, lambda: workers.work(url, HAND_BATCH), table.reset, events))
    return _race(yard, ground, "packages", chosen, PEERS, events)


def packages_to_kafka(yard):
    """Those peers that say how they send to Kafka, with aiokafka as they all do."""
    ground = open_ground(yard.server("postgres18").url)
    topic = KafkaTopic(yard.server("kafka").address, "bench")
    events = yard.size(20_000, 4_000)
    ground.prepare("plain", events, 1_000)

    def relaying(keep_done):
        return relay.drain(ground.store(), yard.batch, keep_done, topic.broker)

    chosen = [
        relay.contest(ground, relay.OURS, lambda: relaying(0), events),
        relay.contest(ground, relay.DEFAULT, lambda: relaying(86_400), events),
    ]
    peers = [peer for peer in PEERS if peer.kafka]
    return _race(yard, ground, "packages-kafka", chosen, peers, events, topic.servers)


def _race(yard, ground, part, chosen, peers, events, kafka=None):
    """The contestants of ours, and after them all peers that run here."""
    ours = [contest.name for contest in chosen]
    racers, missing = [], []
    for peer in peers:
        try:
            racers.append(Racer(peer, ground.url, events, 1_000, yard.size(8, 2), kafka))
        except (NoPythonError, InstallError, OSError, RacerError) as error:
            say(f"{peer.package} does not run: {error}")
            missing.append(f"{peer.package} did not run: {str(error).splitlines()[0]}")
    try:
        figures = alternate(chosen + [racer.contest() for racer in racers], yard.rounds)
    finally:
        ground.close()
    measured = {racer.peer.package: pinned(racer.peer.package) for racer in racers}
    fields = {
        "suite": "peers", "part": part, "events": events, "batch": yard.batch,
        "quick": yard.quick, "versions": versions(store=ground.version) | measured,
    }  # fmt: skip
    missing += [f"{racer.name} failed: {racer.broken}" for racer in racers if racer.broken]
    racers = [racer for racer in racers if not racer.broken]
    results = [
        beside(figures, relay.OURS, racer.name, note=racer.note(), **fields) for racer in racers
    ]
    if racers:
        fastest = max(racers, key=lambda racer: statistics.median(figures[racer.name])).name
        note = "; ".join(["the default settings beside the fastest peer", *missing])
        results.append(beside(figures, relay.DEFAULT, fastest, note=note, **fields))
    if BY_HAND in ours:
        note = "; ".join([NO_ORDER, *(missing if not racers else ())])
        results.append(beside(figures, relay.OURS, BY_HAND, note=note, **fields))
    if not results:
        raise RuntimeError("; ".join(missing))
    return results


class Clocked(NullBroker):
    """A void that notes when the last of so many events came."""

    def __init__(self, events):
        super().__init__()
        self._events = events
        self.at = 0.0

    async def publish(self, batch, reporter):
        await super().publish(batch, reporter)
        if self.confirmed == self._events:
            self.at = time.perf_counter()


def to_last_publish(ground, batch, keep_done, events):
    """The peers' clock for a relay: from its making to its last publish."""
    broker, began = Clocked(events), time.perf_counter()
    if relay.drain(ground.store(), batch, keep_done, lambda: broker) != events:
        raise RuntimeError("events are missing")
    return events / (broker.at - began)


def kafka_by_hand(yard):
    ground = open_ground(yard.server("postgres18").url)
    topic = KafkaTopic(yard.server("kafka").address)

    def work():
        return workers.work(ground.url, HAND_BATCH, topic.sender(topic.plain()))

    name = f"{BY_HAND}, confluent-kafka"
    return _by_hand(yard, ground, "kafka-by-hand", topic, name, work, kafka=KAFKA_VERSION)


def rabbitmq_by_hand(yard):
    ground = open_ground(yard.server("postgres18").url)
    queue = RabbitQueue(yard.server("rabbitmq").url)

    def work():
        return workers.work_to_rabbit(ground.url, queue.url, HAND_BATCH)

    name, version = f"{BY_HAND}, aio-pika", yard.server("rabbitmq").version
    return _by_hand(yard, ground, "rabbitmq-by-hand", queue, name, work, rabbitmq=version)


def _by_hand(yard, ground, part, place, name, work, **servers):
    events = yard.size(20_000, 4_000)
    chosen = workers.contests(ground, place, events, yard.batch, name, work)
    return _beside_first(yard, ground, part, chosen, events, **servers)


def mongo_claims(yard):
    """The worker that claims each event by findOneAndUpdate, 1,000 of them a round."""
    ground = open_ground(yard.server("mongo").url)
    events = yard.size(20_000, 4_000)
    chosen = [*relay.claims(ground), *relay.contests(ground, events, 1_000, yard.batch)[1:]]
    return _beside_first(yard, ground, "mongo-claims", chosen, events)


def _beside_first(yard, ground, part, chosen, events, **servers):
    try:
        figures = alternate(chosen, yard.rounds)
    finally:
        ground.close()
    return [
        beside(
            figures, name, chosen[0].name, suite="peers", part=part, events=events,
            batch=yard.batch, quick=yard.quick, note=NO_ORDER,
            versions=versions(store=ground.version, **servers),
        )
        for name in (relay.OURS, relay.DEFAULT)
    ]  # fmt: skip


PARTS = {
    "packages": packages,
    "packages-kafka": packages_to_kafka,
    "kafka-by-hand": kafka_by_hand,
    "rabbitmq-by-hand": rabbitmq_by_hand,
    "mongo-claims": mongo_claims,
    "debezium": debezium,
}
