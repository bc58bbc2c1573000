"""From a store to a real broker: a relay beside the bare drivers doing the same work.

The bare loop reads a batch in order, sends it, waits for every confirm, deletes the rows, and does
so again. It has no leases, no fence and no order after a failure. Its producer has the relay's own
settings and headers.
"""

from functools import partial

from bench import relay, workers
from bench.grounds import open_ground
from bench.result import beside, versions
from bench.rounds import alternate
from bench.sending import KafkaTopic, RabbitQueue
from tests.servers.programs import KAFKA_VERSION

NO_HEADERS = "bare drivers, no headers"
BARE = "bare drivers, the relay's headers"
FOUR = "relay, keep_done_seconds=0, groups=4"
AIO_PIKA = "bare psycopg + aio-pika"


def to_kafka(store, yard):
    ground = open_ground(yard.server(store).url)
    topic = KafkaTopic(yard.server("kafka").address)
    events = yard.size(50_000, 10_000)
    ground.prepare("plain", events, 1_000)

    def bare(*, headers):
        return ground.bare(yard.batch, topic.sender(topic.tuned(), headers=headers))

    def relaying(keep_done=0, **options):
        return relay.drain(ground.store(), yard.batch, keep_done, topic.broker, **options)

    runs = {
        NO_HEADERS: lambda: bare(headers=False),
        BARE: lambda: bare(headers=True),
        relay.OURS: relaying,
        FOUR: lambda: relaying(groups=4),
        relay.DEFAULT: lambda: relaying(86_400),
    }
    try:
        chosen = [relay.contest(ground, name, run, events) for name, run in runs.items()]
        figures = alternate(chosen, yard.rounds)
    finally:
        ground.close()
    fields = {
        "suite": "limits", "part": f"{store}-kafka", "events": events, "batch": yard.batch,
        "quick": yard.quick, "versions": versions(store=ground.version, kafka=KAFKA_VERSION),
    }  # fmt: skip
    pairs = [(relay.OURS, BARE), (FOUR, BARE), (relay.DEFAULT, BARE), (relay.OURS, NO_HEADERS)]
    return [beside(figures, *pair, **fields) for pair in pairs]


def to_rabbitmq(yard):
    """The bare loop takes batches of the relay's size, with rows locked as a worker's are."""
    ground = open_ground(yard.server("postgres18").url)
    queue = RabbitQueue(yard.server("rabbitmq").url)
    events = yard.size(20_000, 5_000)
    chosen = workers.contests(
        ground, queue, events, yard.batch, AIO_PIKA,
        lambda: workers.work_to_rabbit(ground.url, queue.url, yard.batch),
    )  # fmt: skip
    try:
        figures = alternate(chosen, yard.rounds)
    finally:
        ground.close()
    fields = {
        "suite": "limits", "part": "postgres18-rabbitmq", "events": events, "batch": yard.batch,
        "quick": yard.quick,
        "versions": versions(store=ground.version, rabbitmq=yard.server("rabbitmq").version),
        "note": "a durable quorum queue, every message persistent and confirmed",
    }  # fmt: skip
    return [beside(figures, name, AIO_PIKA, **fields) for name in (relay.OURS, relay.DEFAULT)]


PARTS = {
    **{f"{store}-kafka": partial(to_kafka, store) for store in ("postgres18", "mariadb", "mongo")},
    "postgres18-rabbitmq": to_rabbitmq,
}
