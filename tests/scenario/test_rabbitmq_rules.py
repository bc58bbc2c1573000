"""The rules that were paid for on RabbitMQ (Q1 to Q4, P2, P3), each on the real server."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import aio_pika
import pytest

from postroom.broker import Verdict
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.brokers.rabbitmq import connection as connection_module
from postroom.brokers.rabbitmq.channels import FastChannel, PlainChannel, fits
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.scenario.place import until
from tests.scenario.rabbit import Tap, fresh
from tests.servers.proxy import Proxy

POISON = '{"CC": "not a list"}'  # RabbitMQ reads this header, and closes the channel over it


@pytest.fixture
def name():
    return fresh("rules")


@pytest.fixture
async def tap(rabbitmq_url, name):
    """An exchange and a queue of one name, bound for all that begins with `ok`."""
    async with Tap(rabbitmq_url) as tap:
        await tap.exchange(name)
        await tap.queue(name)
        await tap.bind(name, name, "ok.#")
        yield tap


@pytest.fixture
def proxy(rabbitmq_url):
    with Proxy(urlsplit(rabbitmq_url).port) as proxy:
        yield proxy


@pytest.fixture(params=[FastChannel, PlainChannel])
def kind(request, monkeypatch):
    """Both ways to publish keep the rules."""
    if request.param is PlainChannel:
        monkeypatch.setattr(connection_module, "fits", lambda _: False)
    return request.param


@pytest.fixture
async def brokers():
    made = []

    async def make(url, **options):
        broker = RabbitBroker(url, **{"confirm_seconds": 5, "connect_seconds": 5, **options})
        made.append(broker)
        await broker.open()
        return broker

    yield make
    for broker in made:
        await broker.close()


@pytest.fixture
def reporter():
    return RecordingReporter()


def batch(*topics, **facts):
    """Records of as many keys, one for each topic."""
    return [
        make_record(n, id=f"e{n}", key=f"key-{n}", topic=topic, **facts)
        for n, topic in enumerate(topics, 1)
    ]


async def sent(tap, queue):
    return [message.message_id for message in await tap.drain(queue)]


# -- Q1 ---------------------------------------------------------------------------------------
@pytest.mark.promise("Q1")
async def test_what_aio_pika_returns_for_an_unroutable_message_is_no_confirm(rabbitmq_url):
    """The trap itself: if this fails the library has changed, and the rule can be looked at."""
    async with await aio_pika.connect(rabbitmq_url) as connection:
        channel = await connection.channel()
        answer = await channel.default_exchange.publish(aio_pika.Message(b"x"), fresh("nobody"))
        assert type(answer).__name__ == "DeliveredMessage"


@pytest.mark.req("S5.2")
@pytest.mark.promise("Q1", "P2")
async def test_only_an_ack_is_a_confirm(rabbitmq_url, name, tap, brokers, reporter, kind):
    broker = await brokers(rabbitmq_url, exchange=name)
    good, bad, also = batch("ok.1", "lost.2", "ok.3")
    await broker.publish([good, bad, also], reporter)
    assert [reporter.verdict(r) for r in (good, also)] == [Verdict.CONFIRMED] * 2
    assert reporter.verdict(bad) is Verdict.MISCONFIGURED
    assert reporter.outcome(bad).error == (
        f"unroutable (312 NO_ROUTE): no queue is bound to the exchange '{name}' for the routing "
        "key 'lost.2'. Bind one; the event and its key wait until then"
    )
    assert await sent(tap, name) == ["e1", "e3"]


@pytest.mark.promise("Q1")
async def test_the_default_exchange_routes_to_queues(
    rabbitmq_url, name, tap, brokers, reporter, kind
):
    broker = await brokers(rabbitmq_url)
    good, bad = batch(name, fresh("nobody"))
    await broker.publish([good, bad], reporter)
    assert reporter.verdict(good) is Verdict.CONFIRMED
    assert "no queue is bound to the default exchange for" in reporter.outcome(bad).error
    assert await sent(tap, name) == ["e1"]


@pytest.mark.promise("Q1", "P2")
async def test_a_nack_is_no_confirm_and_no_attempt(
    rabbitmq_url, name, tap, brokers, reporter, kind
):
    """A full queue refuses: an outage, unless others are taken meanwhile."""
    full = fresh("full")
    await tap.queue(full, kind="classic", x_max_length=2, x_overflow="reject-publish")
    broker = await brokers(rabbitmq_url)
    filling = batch(*[full] * 5)
    await broker.publish(filling, reporter)
    assert [reporter.verdict(r).value for r in filling] == ["confirmed"] * 2 + ["outage"] * 3
    assert reporter.outcome(filling[4]).error == (
        "refused (nack): a queue behind the default exchange for the routing key "
        f"'{full}' is full or unavailable"
    )
    reporter.reports.clear()
    mixed = batch(full, name, full, name)
    await broker.publish(mixed, reporter)
    assert [reporter.verdict(r).value for r in mixed] == ["misconfigured", "confirmed"] * 2
    reporter.reports.clear()
    await broker.publish_alone(mixed[0], reporter)
    assert reporter.verdict(mixed[0]) is Verdict.OUTAGE
    assert await sent(tap, full) == ["e1", "e2"]


@pytest.mark.promise("Q3", "G4")
async def test_nothing_of_a_key_passes_what_a_full_queue_refused(
    rabbitmq_url, tap, brokers, reporter, kind
):
    """There is room again a moment later, and a second message in flight would take it."""
    full = fresh("full")
    await tap.queue(full, kind="classic", x_max_length=2, x_overflow="reject-publish")
    broker = await brokers(rabbitmq_url)
    run = [make_record(n, id=f"e{n}", key="k", topic=full) for n in range(1, 7)]
    await broker.publish(run, reporter)
    assert [reporter.verdict(r).value for r in run] == ["confirmed"] * 2 + ["outage"] + [
        "unsent"
    ] * 3
    assert await sent(tap, full) == ["e1", "e2"]
    again = RecordingReporter()
    await broker.publish(run[2:4], again)
    assert again.ids(Verdict.CONFIRMED) == ["e3", "e4"]
    assert await sent(tap, full) == ["e1", "e2", "e3", "e4"]


# -- Q2 ---------------------------------------------------------------------------------------
@pytest.mark.promise("Q2", "P3")
async def test_a_late_answer_is_not_taken_for_that_of_a_second_try(
    rabbitmq_url, name, tap, brokers, reporter, proxy, kind
):
    """The return of the first try comes while the second, with the same id, is in flight."""
    broker = await brokers(proxy.url_for(rabbitmq_url), exchange=name)
    (first,) = batch("lost")
    second = first._replace(topic="ok")
    await broker.publish([second._replace(id="warm", seq=9)], reporter)
    proxy.delay(0.15)
    publishing = asyncio.create_task(broker.publish([first], reporter))
    await until(lambda: not broker._link._idle)  # its channel is in use
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    await broker.publish([second], reporter)
    assert reporter.ids(Verdict.CONFIRMED) == ["warm", "e1"]
    assert len(reporter.reports) == 2


@pytest.mark.promise("Q2")
async def test_a_channel_with_an_open_question_is_not_used_again(
    rabbitmq_url, name, tap, brokers, reporter, proxy, kind
):
    broker = await brokers(proxy.url_for(rabbitmq_url), exchange=name, confirm_seconds=0.3)
    one, two = batch("ok.1", "ok.2")
    await broker.publish([one], reporter)
    (used,) = broker._link._idle
    proxy.delay(1.0)
    await broker.publish([two], reporter)
    assert reporter.verdict(two) is Verdict.UNKNOWN
    assert broker._link._idle == []
    proxy.heal()
    reporter.reports.clear()
    await broker.publish([two], reporter)
    assert reporter.verdict(two) is Verdict.CONFIRMED
    assert used not in broker._link._idle


@pytest.mark.promise("P2")
async def test_a_connection_that_says_nothing_is_given_up(
    rabbitmq_url, name, tap, brokers, reporter, proxy, kind
):
    broker = await brokers(
        proxy.url_for(rabbitmq_url), exchange=name, confirm_seconds=0.3, connect_seconds=0.3
    )
    one, two, three = batch("ok.1", "ok.2", "ok.3")
    await broker.publish([one], reporter)
    silent = broker._link
    proxy.swallow("replies")
    await broker.publish([two], reporter)
    assert reporter.verdict(two) is Verdict.UNKNOWN  # it may have arrived
    await broker.publish([three], reporter)
    assert reporter.verdict(three) is Verdict.OUTAGE  # nothing has left
    await until(lambda: silent.is_broken)
    assert broker._link is None
    proxy.heal()
    reporter.reports.clear()
    await broker.publish([two, three], reporter)
    assert reporter.ids(Verdict.CONFIRMED) == ["e2", "e3"]


# -- Q4 ---------------------------------------------------------------------------------------
@pytest.mark.promise("Q4", "P3")
async def test_an_exchange_that_is_deleted_takes_its_neighbours_along_once(
    rabbitmq_url, tap, name, brokers, reporter, kind
):
    gone = fresh("gone")
    await tap.exchange(gone, "fanout")
    await tap.bind(name, gone, "")
    broker = await brokers(rabbitmq_url, exchange_from="topic", routing_key="type")
    await broker.publish(batch(name, gone, type="ok"), reporter)
    assert len(reporter.ids(Verdict.CONFIRMED)) == 2
    await tap.remove_exchange(gone)

    reporter.reports.clear()
    culprit, *others = records = batch(gone, *[name] * 200, type="ok")
    await broker.publish(records, reporter)
    assert reporter.verdict(culprit) is Verdict.UNKNOWN
    assert "NOT_FOUND" in reporter.outcome(culprit).error
    unknown = set(reporter.ids(Verdict.UNKNOWN))
    assert unknown | set(reporter.ids(Verdict.CONFIRMED)) == {r.id for r in records}

    # Alone, the culprit is found, and its neighbours go.
    reporter.reports.clear()
    for record in records:
        if record.id in unknown:
            await broker.publish_alone(record, reporter)
    assert reporter.verdict(culprit) is Verdict.MISCONFIGURED
    assert reporter.outcome(culprit).error == (
        f"the exchange '{gone}' cannot be used: ChannelNotFoundEntity: NOT_FOUND - no exchange "
        f"'{gone}' in vhost '/'"
    )
    assert set(reporter.ids(Verdict.CONFIRMED)) == unknown - {culprit.id}

    # From now on it is known to be missing, and harms nobody.
    reporter.reports.clear()
    await broker.publish(records, reporter)
    assert reporter.verdict(culprit) is Verdict.MISCONFIGURED
    assert set(reporter.ids(Verdict.CONFIRMED)) == {r.id for r in others}

    reporter.reports.clear()
    await tap.exchange(gone, "fanout")
    await tap.bind(name, gone, "")
    await broker.publish([culprit], reporter)
    assert reporter.verdict(culprit) is Verdict.CONFIRMED


@pytest.mark.promise("Q4", "P2")
async def test_a_missing_exchange_is_found_before_anything_is_sent(
    rabbitmq_url, name, tap, brokers, reporter, kind
):
    broker = await brokers(rabbitmq_url, exchange_from="topic", routing_key="type")
    records = batch(fresh("nowhere"), name, "no*name", type="ok")
    await broker.publish(records, reporter)
    assert [reporter.verdict(r).value for r in records] == [
        "misconfigured", "confirmed", "misconfigured",
    ]  # fmt: skip
    assert reporter.outcome(records[2]).error == "'no*name' is not a valid exchange name"
    await broker.publish_alone(records[0]._replace(id="alone"), reporter)
    assert reporter.verdict(records[0]._replace(id="alone")) is Verdict.MISCONFIGURED


@pytest.mark.promise("P2", "P3", "G7")
async def test_a_message_that_closes_its_channel_is_found_and_remembered(
    rabbitmq_url, name, tap, brokers, reporter, kind
):
    broker = await brokers(rabbitmq_url, exchange=name)
    records = batch(*["ok.x"] * 100)
    poison = records[50] = records[50]._replace(headers_json=POISON)
    await broker.publish(records, reporter)
    assert reporter.verdict(poison) is Verdict.UNKNOWN
    unknown = [r for r in records if reporter.verdict(r) is Verdict.UNKNOWN]
    reporter.reports.clear()
    for record in unknown:
        await broker.publish_alone(record, reporter)
    assert reporter.verdict(poison) is Verdict.REJECTED
    assert "it closes its channel: " in reporter.outcome(poison).error
    assert "unacceptable_type_in_header" in reporter.outcome(poison).error
    assert len(reporter.ids(Verdict.CONFIRMED)) == len(unknown) - 1

    # A strict event stays: the next time it harms nobody.
    reporter.reports.clear()
    await broker.publish(records, reporter)
    assert reporter.verdict(poison) is Verdict.UNKNOWN
    assert len(reporter.ids(Verdict.CONFIRMED)) == 99
    reporter.reports.clear()
    mended = poison._replace(headers_json=None)
    await broker.publish_alone(mended, reporter)
    await broker.publish([mended._replace(seq=999)], reporter)
    assert len(reporter.ids(Verdict.CONFIRMED)) == 2


@pytest.mark.promise("P2", "P3")
async def test_no_permission_is_no_fault_of_the_event(rabbitmq_url, tap, brokers, reporter, kind):
    inside = fresh("internal")
    await tap.exchange(inside, internal=True)
    broker = await brokers(rabbitmq_url, exchange=inside)
    (record,) = batch("ok")
    await broker.publish_alone(record, reporter)
    assert reporter.verdict(record) is Verdict.MISCONFIGURED
    assert "ACCESS_REFUSED - cannot publish to internal exchange" in reporter.outcome(record).error


@pytest.mark.promise("P3", "Q4")
async def test_a_suspect_shares_its_fate_with_nobody(
    rabbitmq_url, name, tap, brokers, reporter, proxy, kind
):
    """While a batch is in flight, a suspect closes its channel; the batch is confirmed."""
    broker = await brokers(proxy.url_for(rabbitmq_url), exchange=name)
    await broker.publish(batch("ok")[:1], reporter)
    await broker.publish_alone(batch("ok")[0]._replace(id="warm"), reporter)
    assert broker._suspect_link is not None
    assert broker._suspect_link is not broker._link
    reporter.reports.clear()
    records = batch(*["ok.x"] * 50)
    proxy.delay(0.05)
    publishing = asyncio.create_task(broker.publish(records, reporter))
    poison = make_record(99, id="poison", topic="ok.x", headers_json=POISON)
    await broker.publish_alone(poison, reporter)
    await publishing
    assert reporter.verdict(poison) is Verdict.REJECTED
    assert len(reporter.ids(Verdict.CONFIRMED)) == 50


# -- the inside of the library (Q3) -----------------------------------------------------------
@pytest.mark.promise("Q3")
async def test_the_inside_of_aiormq_is_as_the_fast_channel_knows_it(rabbitmq_url, brokers):
    """If this fails, a new aiormq has changed inside: events still go, by its public API, at a
    fraction of the speed. Adapt `channels.py`, and let the contract run with both channels."""
    broker = await brokers(rabbitmq_url)
    opened = await broker._link.open(confirms=True)
    assert fits(opened)
    assert isinstance(await broker._link.take(), FastChannel)


@pytest.mark.promise("Q3")
@pytest.mark.parametrize(
    "lost", ["confirmations", "message_id_delivery_tag", "write_queue", "delivery_tag"]
)
async def test_another_inside_is_noticed_and_the_public_api_used(
    rabbitmq_url, name, tap, brokers, reporter, monkeypatch, lost
):
    broker = await brokers(rabbitmq_url, exchange=name)
    opened = await broker._link.open(confirms=True)
    kept = getattr(opened, lost)
    delattr(opened, lost)
    assert not fits(opened)
    setattr(opened, lost, kept)
    monkeypatch.setattr(connection_module, "fits", lambda _: False)
    records = batch(*["ok.x"] * 20)
    await broker.publish(records, reporter)
    assert len(reporter.ids(Verdict.CONFIRMED)) == 20
    assert isinstance(broker._link._idle[0], PlainChannel)


async def test_what_does_not_fit_into_a_frame_is_rejected_before_it_is_sent(
    rabbitmq_url, name, tap, brokers, reporter
):
    """RabbitMQ would close the whole connection over it."""
    broker = await brokers(rabbitmq_url, exchange=name)
    records = batch("ok.1", "ok.2", "ok.3")
    records[1] = records[1]._replace(causation_json="x" * 140_000)
    await broker.publish(records, reporter)
    assert [reporter.verdict(r).value for r in records] == ["confirmed", "rejected", "confirmed"]
    assert "a frame holds 131064" in reporter.outcome(records[1]).error
