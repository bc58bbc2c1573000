"""The peers: what each one promises, and the settings among which its best is looked for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """A package, as its own documentation describes it.

    script      the module below bench.peers.scripts
    order       what it promises for the events of one key
    batch       what it does for many events at once
    settings    what is tried; the first is the documented default, the fastest one runs
    kafka       whether it says how it sends to Kafka
    python      the oldest Python that it runs on
    """

    package: str
    script: str
    order: str
    batch: str
    settings: tuple[dict, ...]
    python: tuple[int, int] = (3, 11)
    kafka: bool = True


def batches(*sizes):
    return tuple({"batch": size} for size in sizes)


PEERS = (
    Peer(
        "txoutbox", "txoutbox", "order by key (strict mode)",
        "claims and deletes a batch in a statement each, publishes one by one",
        batches(50, 100, 500),
    ),
    Peer(
        "pgqueuer", "pgqueuer", "no order",
        "claims a batch, handles each individually, marks a batch",
        batches(10, 100, 500), kafka=False,
    ),
    Peer(
        "faststream-outbox", "faststream_outbox", "no order",
        "claims and deletes a batch in a statement each, handles each individually",
        (
            {"batch": 10, "workers": 1}, {"batch": 100, "workers": 1},
            {"batch": 500, "workers": 1}, {"batch": 500, "workers": 4},
        ),
    ),
    Peer(
        "procrastinate", "procrastinate", "order by key (a lock for each key)",
        "no batches: claims and deletes each job individually",
        ({"concurrency": 1}, {"concurrency": 10}, {"concurrency": 50}), kafka=False,
    ),
    Peer(
        "omni-box", "omni_box", "order by key (only its head is claimed)",
        "claims and marks a batch in a statement each, publishes one by one; keeps what is done",
        batches(100, 500, 1_000), (3, 12),
    ),
    Peer(
        "pactix", "pactix", "order by key (only its head is claimed)",
        "claims a batch, publishes and marks one by one; keeps what is done",
        batches(100, 500), (3, 12),
    ),
)  # fmt: skip
EXTRAS = ("aiokafka", "asyncpg", "psycopg[binary]", "psycopg-pool", "SQLAlchemy[asyncio]", "uvloop")
