"""RabbitMQ: connecting, declaring, checking, health and the end, on the real server."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlsplit

import aio_pika
import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.errors import ConfigError
from postroom.sources.rabbitmq.source import RabbitSource
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.scenario.place import until
from tests.scenario.rabbit import Tap, fresh
from tests.servers.process import free_port
from tests.servers.proxy import Proxy

OURS = {"x_single_active_consumer": True, "x_delivery_limit": 2**31 - 1}


@pytest.fixture
def name():
    return fresh("setup")


@pytest.fixture
async def tap(rabbitmq_url):
    async with Tap(rabbitmq_url) as tap:
        yield tap


@pytest.fixture
def proxy(rabbitmq_url):
    with Proxy(urlsplit(rabbitmq_url).port) as proxy:
        yield proxy


@pytest.fixture
async def brokers():
    made = []

    def make(url, **options):
        made.append(RabbitBroker(url, **{"connect_seconds": 2, "confirm_seconds": 2, **options}))
        return made[-1]

    yield make
    for broker in made:
        await broker.close()


@pytest.fixture
def reporter():
    return RecordingReporter()


# -- declaring (S5.2) -------------------------------------------------------------------------
@pytest.mark.req("S5.2")
async def test_exchange_queue_and_binding_are_declared_on_start(
    rabbitmq_url, name, tap, brokers, reporter
):
    tap.owns(name, name)
    url = f"{rabbitmq_url}?exchange={name}&routing_key=type&declare=on&queue={name}&single=off"
    broker = brokers(url)
    await broker.open()
    record = make_record(type="order.created")
    await broker.publish([record], reporter)
    assert reporter.verdict(record) is Verdict.CONFIRMED
    (message,) = await tap.drain(name)
    assert (message.exchange, message.routing_key) == (name, "order.created")
    with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed, match="quorum"):
        await tap.queue(name, kind="classic")  # durable, and a quorum queue


async def test_declaring_again_is_no_change_and_each_binding_counts(
    rabbitmq_url, name, tap, brokers, reporter
):
    tap.owns(name, name)
    options = {
        "exchange": name, "exchange_type": "direct", "queue": name, "queue_type": "classic",
        "bindings": ("a", "b"), "declare": True,
    }  # fmt: skip
    for n in range(2):
        broker = brokers(rabbitmq_url, **options)
        await broker.open()
        records = [
            make_record(i, id=f"{n}-{topic}", topic=topic)
            for i, topic in enumerate(["a", "b", "c"])
        ]
        await broker.publish(records, reporter)
        assert reporter.verdict(records[2]) is Verdict.MISCONFIGURED
    assert [m.message_id for m in await tap.drain(name)] == ["0-a", "0-b", "1-a", "1-b"]


async def test_what_was_deleted_is_declared_again_with_the_next_use(
    rabbitmq_url, name, tap, brokers, reporter
):
    tap.owns(name, name)
    broker = brokers(rabbitmq_url, exchange=name, queue=name, declare=True, single=False)
    await broker.open()
    await broker.publish([make_record(1)], reporter)
    await tap.remove_exchange(name)
    lost, again = make_record(2, id="lost"), make_record(3, id="again")
    await broker.publish([lost], reporter)
    assert reporter.verdict(lost) is Verdict.UNKNOWN
    await broker.publish([again], reporter)
    assert reporter.verdict(again) is Verdict.CONFIRMED
    assert [m.message_id for m in await tap.drain(name)] == ["event-1", "again"]


async def test_exchanges_that_topics_name_are_declared_when_they_are_used(
    rabbitmq_url, name, tap, brokers, reporter
):
    tap.owns(exchange=name)
    broker = brokers(rabbitmq_url, exchange_from="topic", exchange_type="fanout", declare=True)
    await broker.open()
    record = make_record(topic=name)
    await broker.publish([record], reporter)
    assert "unroutable" in reporter.outcome(record).error  # the exchange is there, a queue is not
    await tap.queue(name)
    await tap.bind(name, name, "")
    reporter.reports.clear()
    await broker.publish([record], reporter)
    assert reporter.verdict(record) is Verdict.CONFIRMED


async def test_another_exchange_of_that_name_is_an_error_and_left_alone(
    rabbitmq_url, name, tap, brokers, reporter
):
    await tap.exchange(name, "fanout")
    broker = brokers(rabbitmq_url, exchange=name, declare=True)
    with pytest.raises(ConfigError, match="inequivalent arg 'type' for exchange"):
        await broker.open()
    record = make_record()
    await broker.publish([record], reporter)
    assert reporter.verdict(record) is Verdict.OUTAGE
    assert "inequivalent arg 'type'" in reporter.outcome(record).error


@pytest.mark.parametrize("kind", ["quorum", "classic"])
@pytest.mark.parametrize("first", ["relay", "consumer"])
async def test_a_relay_and_a_consumer_may_declare_the_same_queue(
    rabbitmq_url, name, tap, brokers, reporter, kind, first, caplog
):
    """R-D5: the second of them met a ConfigError."""
    tap.owns(name, name)
    url = f"{rabbitmq_url}?exchange={name}&queue={name}&queue_type={kind}&declare=on"
    broker, source = brokers(url), RabbitSource(url)
    for each in (broker, source) if first == "relay" else (source, broker):
        await each.open()
    record = make_record()
    await broker.publish([record], reporter)
    (delivery,) = await source.receive()
    assert delivery.message.headers["postroom-id"] == record.id
    delivery.ack()
    await source.close()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({**OURS, "x_delivery_limit": 20}, ("x-delivery-limit=20", "x-delivery-limit=2147483647")),
        ({**OURS, "x_delivery_limit": 20, "x_max_length": 9},
         ("x-delivery-limit=20, x-max-length=9", "x-delivery-limit=2147483647, x-max-length=none")),
        ({"kind": "classic", "x_single_active_consumer": True},
         ("x-queue-type=classic", "x-queue-type=quorum")),
    ],
    ids=["limit", "one of theirs", "classic"],
)  # fmt: skip
async def test_a_queue_that_exists_otherwise_is_used_as_it_is(
    rabbitmq_url, name, tap, brokers, reporter, arguments, told, caplog
):
    await tap.queue(name, **arguments)
    tap.owns(exchange=name)
    broker = brokers(rabbitmq_url, exchange=name, queue=name, declare=True)
    source = RabbitSource(rabbitmq_url, exchange=name, queue=name, declare=True)
    await broker.open()
    await source.open()
    await broker.publish([make_record()], reporter)
    (delivery,) = await source.receive()
    delivery.ack()
    await source.close()
    (line,) = [record.getMessage() for record in caplog.records]  # not at every connection
    there, ours = told
    assert line.startswith(
        f"the queue '{name}' exists with {there}, where postroom would declare {ours}: it is used"
    )


@pytest.mark.promise("I3")
async def test_a_queue_that_several_would_share_is_a_relays_but_no_consumers(
    rabbitmq_url, name, tap, brokers, reporter
):
    await tap.queue(name, x_max_length=9)
    await brokers(rabbitmq_url, queue=name, declare=True).open()
    source = RabbitSource(rabbitmq_url, queue=name, declare=True)
    told = f"the queue '{name}' exists with x-single-active-consumer=none: several consumers"
    with pytest.raises(ConfigError, match=told):
        await source.open()
    await source.close()
    without_order = RabbitSource(rabbitmq_url, queue=name, declare=True, single=False)
    await without_order.open()
    await without_order.close()


async def test_a_queue_that_would_lose_messages_is_refused(rabbitmq_url, name, tap, brokers):
    channel = await tap._connection.channel()
    await channel.declare_queue(name, durable=False)
    told = f"the queue '{name}' exists with durable=false: it would lose messages"
    with pytest.raises(ConfigError, match=told):
        await brokers(rabbitmq_url, queue=name, declare=True).open()
    with pytest.raises(ConfigError, match=told):
        await RabbitSource(rabbitmq_url, queue=name, declare=True).open()
    await channel.queue_delete(name)


async def test_without_declare_nothing_is_made_but_its_absence_is_told(
    rabbitmq_url, name, tap, brokers, reporter
):
    with pytest.raises(ConfigError, match=f"no exchange '{name}' in vhost '/'"):
        await brokers(rabbitmq_url, exchange=name).open()
    with pytest.raises(ConfigError, match=f"no queue '{name}' in vhost '/'"):
        await brokers(rabbitmq_url, queue=name).open()
    broker = brokers(rabbitmq_url, exchange=name, queue=name)
    with pytest.raises(ConfigError):
        await broker.open()
    await tap.exchange(name)
    await tap.queue(name)
    await tap.bind(name, name, "#")
    await broker.open()
    record = make_record()
    await broker.publish([record], reporter)
    assert reporter.verdict(record) is Verdict.CONFIRMED


@pytest.mark.promise("P2")
async def test_an_alternate_exchange_takes_what_is_unroutable(
    rabbitmq_url, name, tap, brokers, reporter
):
    await tap.exchange(f"{name}-rest", "fanout")
    await tap.queue(name)
    await tap.bind(name, f"{name}-rest", "")
    await tap.exchange(name, arguments={"alternate-exchange": f"{name}-rest"})
    broker = brokers(rabbitmq_url, exchange=name)
    await broker.open()
    record = make_record()
    await broker.publish([record], reporter)
    assert reporter.verdict(record) is Verdict.CONFIRMED
    assert len(await tap.drain(name)) == 1


# -- who is let in ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda url: url.replace("guest:guest", "guest:wrong-secret"), "ACCESS_REFUSED"),
        (
            lambda url: url + "no-such-vhost",
            "to the virtual host 'no-such-vhost': it does not exist",
        ),
    ],
)
async def test_not_being_let_in_is_an_outage_and_shows_no_secret(
    rabbitmq_url, brokers, reporter, change, error
):
    broker = brokers(change(rabbitmq_url))
    await broker.open()
    record = make_record()
    await broker.publish([record], reporter)
    await broker.publish_alone(record._replace(id="alone"), reporter)
    assert [outcome.verdict for _, outcome in reporter.reports] == [Verdict.OUTAGE] * 2
    assert error in reporter.outcome(record).error
    with pytest.raises(ConnectionError, match=error) as caught:
        await broker.health()
    assert "wrong-secret" not in str(caught.value) + reporter.outcome(record).error


async def test_a_virtual_host_of_its_own(rabbitmq_url, brokers):
    await brokers(rabbitmq_url + "%2F").health()
    await brokers(rabbitmq_url.removesuffix("/")).health()


async def test_of_several_hosts_the_first_that_answers_is_used(
    rabbitmq_url, brokers, name, reporter
):
    here = urlsplit(rabbitmq_url).netloc.rpartition("@")[2]
    dead = f"127.0.0.1:{free_port()}"
    await brokers(f"amqp://guest:guest@{dead},{here}/").health()
    with pytest.raises(ConnectionError) as caught:
        await brokers(f"amqp://guest:guest@{dead},{dead}/").health()
    assert str(caught.value).count(f"connecting to {dead}") == 2


# -- health and the end (S4.4, S4.9) ----------------------------------------------------------
@pytest.mark.req("S4.4", "S4.9")
async def test_health_notices_a_server_that_says_nothing(rabbitmq_url, proxy, brokers):
    broker = brokers(proxy.url_for(rabbitmq_url), connect_seconds=0.3)
    await broker.health()
    proxy.swallow("replies")
    with pytest.raises(ConnectionError, match=r"opening a channel: no answer within 0\.3 s"):
        await broker.health()
    with pytest.raises(ConnectionError, match=r"connecting to .*: no answer within 0\.3 s"):
        await broker.health()
    proxy.heal()
    await broker.health()


@pytest.mark.req("S4.4")
@pytest.mark.parametrize("direction", ["replies", "requests"])
async def test_close_never_hangs(rabbitmq_url, proxy, brokers, tap, name, reporter, direction):
    await tap.queue(name)
    broker = brokers(proxy.url_for(rabbitmq_url), confirm_seconds=60)
    await broker.open()
    await broker.publish_alone(make_record(topic=name), reporter)
    await broker.publish([make_record(id="first", topic=name)], reporter)
    proxy.swallow(direction)
    big = [make_record(n, topic=name, payload=b"x" * 500_000) for n in range(2, 12)]
    publishing = asyncio.create_task(broker.publish(big, reporter))
    await until(lambda: broker._link._idle == [])
    await asyncio.to_thread(proxy.wait_swallowed)
    async with asyncio.timeout(30):  # far below confirm_seconds
        await broker.close()
        await broker.close()
        await publishing
    assert {reporter.verdict(record) for record in big} == {Verdict.UNKNOWN}


async def test_a_closed_broker_is_away_and_can_be_opened_again(rabbitmq_url, brokers, reporter):
    broker = brokers(rabbitmq_url)
    await broker.open()
    await broker.close()
    record = make_record()
    await broker.publish([record], reporter)
    assert reporter.outcome(record) == Outcome(Verdict.OUTAGE, "the broker is closed")
    with pytest.raises(ConnectionError, match="the broker is closed"):
        await broker.health()
    await broker.open()
    await broker.health()


async def test_a_connection_that_comes_up_too_late_is_not_kept(rabbitmq_url, proxy, brokers):
    broker = brokers(proxy.url_for(rabbitmq_url))
    proxy.delay(0.05)
    opening = asyncio.create_task(broker.open())
    await until(lambda: proxy.connections == 1)
    await broker.close()
    await opening
    await until(lambda: proxy.connections == 0)


# -- what is logged ---------------------------------------------------------------------------
async def test_an_outage_fills_no_log_with_the_drivers_lines(rabbitmq_url, proxy, brokers, caplog):
    caplog.set_level(logging.DEBUG, "postroom.brokers.rabbitmq")
    broker = brokers(proxy.url_for(rabbitmq_url))
    await broker.open()
    proxy.refuse()
    await until(lambda: broker._link.is_broken)
    for _ in range(3):
        with pytest.raises(ConnectionError):
            await broker.health()
    loud = [r for r in caplog.records if r.levelno > logging.DEBUG]
    assert loud == []
    assert "error when creating transport" in caplog.text
    assert "guest:guest" not in caplog.text


async def test_lines_about_other_connections_are_left_alone(rabbitmq_url, brokers, caplog):
    await brokers(rabbitmq_url).open()
    with pytest.raises(ConnectionError):
        await aio_pika.connect(f"amqp://127.0.0.1:{free_port()}/")
    loud = [r.getMessage() for r in caplog.records if r.name.startswith("aiormq")]
    assert any("error when creating transport" in line for line in loud)
