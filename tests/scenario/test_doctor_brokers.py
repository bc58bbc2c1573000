"""What the doctor finds about brokers and sources, and that it is silent about sound ones."""

from __future__ import annotations

import aio_pika
import pytest

from postroom.brokers.rabbitmq.checks import judge_limit
from postroom.cli.configuration import Setting
from postroom.cli.doctor_brokers import check_broker, check_source
from postroom.errors import ConfigError
from postroom.model.url import Url
from postroom.settings import RelaySettings
from tests.scenario.kafka_place import make_topic
from tests.scenario.rabbit import Tap, fresh


async def findings(url, *topics):
    found = await check_broker(Url.parse(url), RelaySettings(), topics)
    assert all(one.why and one.fix for one in found)
    return [(one.level, one.what) for one in found]


async def of_source(url, dedup_seconds=2_592_000.0):
    section = {"source": Setting(Url.parse(url), "x"),
               "dedup_seconds": Setting(dedup_seconds, "x")}  # fmt: skip
    found = await check_source(section)
    assert all(one.why and one.fix for one in found)
    return [(one.level, one.what) for one in found]


# -- Kafka ------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.promise("K2")
async def test_topics_that_do_not_keep_or_take_what_they_should(kafka_url):
    small = make_topic(kafka_url, max_message_bytes=20_000, min_insync_replicas=1)
    assert await findings(kafka_url, small) == [
        ("info", f"topic '{small}' is in a cluster of one broker"),  # U21
        ("warning", f"topic '{small}' accepts 20,000 bytes; an event may have up to 900,000"),
    ]
    stuck = make_topic(kafka_url, min_insync_replicas=2)
    assert await findings(kafka_url, stuck) == [
        ("error", f"topic '{stuck}' has min.insync.replicas=2 in a cluster of one broker")
    ]
    risky = make_topic(
        kafka_url, min_insync_replicas=1, unclean_leader_election_enable="true",
        cleanup_policy="compact",
    )  # fmt: skip
    assert await findings(f"{kafka_url}?topic={risky}&key=id") == [
        ("info", "the message key is the event's id (key=id)"),
        ("info", f"topic '{risky}' is in a cluster of one broker"),
        ("error", f"topic '{risky}' has unclean.leader.election.enable=true"),
        ("warning", f"topic '{risky}' is compacted"),
    ]


@pytest.mark.slow
async def test_a_topic_that_is_missing_is_not_created(kafka_url):
    name = fresh("missing")
    ((level, what),) = await findings(kafka_url, name)
    assert (level, what.startswith(f"topic '{name}': ")) == ("warning", True)
    assert await findings(f"{kafka_url}?create_topics=true", name) == []  # the relay will
    assert await findings(kafka_url, name) != []
    assert await findings(kafka_url) == []


@pytest.mark.slow
@pytest.mark.promise("G6")
async def test_a_topic_that_keeps_more_than_the_inbox_remembers(kafka_url):
    week = make_topic(kafka_url, retention_ms=7 * 86_400_000)
    url = f"{kafka_url}?topic={week}&group=g"
    assert await of_source(url) == []
    assert await of_source(url, dedup_seconds=86_400.0) == [
        ("warning", f"{url} keeps messages for 7.0 days; the inbox keeps ids for 1.0 days")
    ]
    ((level, what),) = await of_source(f"{kafka_url}?topic={fresh('none')}&group=g")
    assert (level, "cannot be consumed" in what) == ("warning", True)


# -- RabbitMQ ---------------------------------------------------------------------------------
@pytest.fixture
async def tap(rabbitmq_url):
    async with Tap(rabbitmq_url) as tap:
        yield tap


@pytest.fixture
def name():
    return fresh("doctor")


DROPS = "the queue 'q' drops a message"
SINGLE = {"x_single_active_consumer": True}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, []),
        ({"x_max_length": 7, "x_overflow": "reject-publish"}, []),
        ({"x_delivery_limit": 3},
         ["after 4 deliveries the queue {name!r} drops a message (x-delivery-limit=3)"]),
        ({"x_delivery_limit": -1},  # means no limit on RabbitMQ 4, and none at all on 3
         ["after 1 deliveries the queue {name!r} drops a message (x-delivery-limit=-1)"]),
        ({"x_delivery_limit": 2**31 - 1}, []),
        ({"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "k"}, []),
        ({"kind": "classic"}, ["{name!r} is a classic queue, not a quorum queue"]),
        ({"kind": "classic", "x_message_ttl": 7_000, "x_max_priority": 4},
         ["{name!r} is a classic queue, not a quorum queue",
          "the queue {name!r} has x-message-ttl=7000: milliseconds, after which messages are dropped"]),
        ({"x_max_length": 7},
         ["the queue {name!r} has x-max-length=7: messages, beyond which the oldest are dropped"]),
    ],
)  # fmt: skip
async def test_what_kind_of_queue_it_is(rabbitmq_url, tap, name, arguments, told):
    await tap.queue(name, **arguments)
    expected = [("warning", one.format(name=name)) for one in told]
    assert await findings(f"{rabbitmq_url}?queue={name}") == expected


async def test_where_a_queue_moves_what_it_delivered_too_often(rabbitmq_url, tap, name):
    await tap.queue(name, x_delivery_limit=3, x_dead_letter_exchange="dlx", **SINGLE)
    what = f"after 4 deliveries the queue '{name}' moves a message to the exchange 'dlx' "
    expected = ("info", what + "(x-delivery-limit=3)")
    assert await findings(f"{rabbitmq_url}?queue={name}") == [expected]
    assert await of_source(f"{rabbitmq_url}?queue={name}") == [expected]


@pytest.mark.parametrize(
    ("version", "arguments", "told"),
    [
        (3, {}, []),
        (4, {}, [f"after 21 deliveries {DROPS} (x-delivery-limit=20, RabbitMQ's default)"]),
        (4, {"x-delivery-limit": -1}, []),
        (4, {"x-delivery-limit": 5},
         [f"after 6 deliveries {DROPS} (x-delivery-limit=5)"]),
        (0, {}, []),
    ],
)  # fmt: skip
def test_rabbitmq_4_has_a_limit_by_default(version, arguments, told):
    found = judge_limit("q", {"x-queue-type": "quorum", **arguments}, version)
    assert [one.what for one in found] == told
    assert list(judge_limit("q", {"x-queue-type": "classic"}, version)) == []


async def test_a_queue_that_is_declared_otherwise(rabbitmq_url, tap, name):
    await tap.queue(name, kind="classic")
    others = "x-delivery-limit=none, x-queue-type=classic, x-single-active-consumer=none"
    assert await findings(f"{rabbitmq_url}?queue={name}&declare=on") == [
        ("warning", f"'{name}' is a classic queue, not a quorum queue"),
        (
            "warning",
            f"the queue '{name}' exists with other properties: {others}",
        ),
    ]
    classic = f"{rabbitmq_url}?queue={name}&declare=on&queue_type=classic&single=off"
    assert len(await findings(classic)) == 1
    other = fresh("doctor")
    await tap.queue(other, x_delivery_limit=2**31 - 1)
    assert await findings(f"{rabbitmq_url}?queue={other}&declare=on&single=off") == []
    told = await of_source(f"{rabbitmq_url}?queue={other}&declare=on")
    assert told[1:] == [
        (
            "error",
            f"the queue '{other}' exists with other properties: x-single-active-consumer=none",
        )
    ]
    assert len(await of_source(f"{rabbitmq_url}?queue={other}&declare=on&single=off")) == 1


async def test_a_queue_that_does_not_survive_a_restart(rabbitmq_url, tap, name):
    connection = await aio_pika.connect(rabbitmq_url)
    async with connection:
        channel = await connection.channel()
        await channel.declare_queue(name, durable=False, auto_delete=True)
        lost = [
            ("error", f"the queue '{name}' is not durable"),
            ("warning", f"the queue '{name}' is deleted when its last consumer disconnects"),
        ]
        assert await findings(f"{rabbitmq_url}?queue={name}") == lost
        *same, (level, what) = await findings(f"{rabbitmq_url}?queue={name}&declare=on")
        assert same == lost
        assert (level, "auto_delete=true, durable=false" in what) == ("error", True)
        await channel.queue_delete(name)


async def test_what_is_missing_is_not_declared(rabbitmq_url, tap, name):
    for url in (f"{rabbitmq_url}?queue={name}", f"{rabbitmq_url}?exchange={name}"):
        ((level, what),) = await findings(url)
        assert (level, "NOT_FOUND" in what) == ("warning", True)
    declares = f"{rabbitmq_url}?exchange={name}&queue={name}&declare=on"
    assert await findings(declares) == []  # the relay will
    assert await of_source(f"{rabbitmq_url}?queue={name}&declare=on") == []
    assert await of_source(f"{rabbitmq_url}?queue={name}") == [
        ("warning", f"the queue '{name}' does not exist")
    ]
    with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
        await tap._channel.get_queue(name)


@pytest.mark.promise("I3")
async def test_a_queue_that_several_consumers_would_share(rabbitmq_url, tap, name):
    await tap.queue(name)
    assert await of_source(f"{rabbitmq_url}?queue={name}") == [
        ("warning", f"the queue '{name}' has no single active consumer")
    ]
    other = fresh("doctor")
    await tap.queue(other, **SINGLE)
    assert await of_source(f"{rabbitmq_url}?queue={other}") == []
    assert await findings(f"{rabbitmq_url}?queue={other}") == []


async def test_sources_that_are_away_or_make_no_sense():
    ((level, what),) = await of_source("amqp://u:s3cret@127.0.0.1:1/?queue=q")
    assert (level, what.startswith("amqp://u:***@127.0.0.1:1/?queue=q is unreachable: ")) == (
        "warning", True,
    )  # fmt: skip
    ((level, what),) = await of_source("amqp://127.0.0.1:1/")
    assert (level, "queue is missing" in what) == ("error", True)
    with pytest.raises(ConfigError):
        Url.parse("no url")
