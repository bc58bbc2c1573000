"""Time limits and ends of a Kafka broker, behind a proxy that can hold it up."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest

from postroom.broker import Verdict
from postroom.brokers.kafka import KafkaBroker
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.scenario.kafka_place import kafka_behind_a_proxy, make_topic, run, tap
from tests.scenario.place import until

pytestmark = pytest.mark.server
PATIENCE = 90.0


@pytest.fixture
async def make():
    """Make brokers that are closed at the end."""
    made = []

    async def make(url, **options):
        broker = KafkaBroker(url, **options)
        await broker.open()
        made.append(broker)
        return broker

    yield make
    for broker in made:
        await broker.close()


@pytest.fixture
def reporter():
    return RecordingReporter()


@pytest.fixture(scope="module")
def behind_a_proxy():
    with kafka_behind_a_proxy() as (_, proxy, url):
        yield proxy, url


@pytest.mark.promise("K3", "P3")
async def test_a_suspect_takes_nobody_with_it(behind_a_proxy, make, reporter):
    """While a bad one is tried alone, a batch for the same partition goes its way."""
    proxy, url = behind_a_proxy
    topic = make_topic(url, partitions=1, cleanup_policy="compact")
    broker = await make(url)
    await broker.publish(run(topic, 1, ["a"]), reporter)
    await broker.publish_alone(run(topic, 1, ["a"], first=2)[0], reporter)
    culprit, batch = make_record(3, topic=topic), run(topic, 50, ["a", "b"], first=10)
    proxy.delay(0.2)
    try:
        trying = asyncio.create_task(broker.publish_alone(culprit, reporter))
        await asyncio.sleep(0)  # it is on its way
        await broker.publish(batch, reporter)
        await trying
    finally:
        proxy.heal()
    assert reporter.verdict(culprit) is Verdict.REJECTED
    assert [reporter.verdict(r) for r in batch] == [Verdict.CONFIRMED] * 50


@pytest.mark.promise("K1")
async def test_nothing_but_publish_seconds_gives_a_message_up(behind_a_proxy, make, reporter):
    """A message that expires by a timer of librdkafka's own is unknown, and sent twice."""
    proxy, url = behind_a_proxy
    topic = make_topic(url)
    broker = await make(url, publish_seconds=60)
    await broker.publish(run(topic, 1), reporter)
    proxy.delay(1.5)  # there, and back
    try:
        await broker.publish(run(topic, 5, ["a", "b"], first=2), reporter)
    finally:
        proxy.heal()
    assert {outcome.verdict for _, outcome in reporter.reports} == {Verdict.CONFIRMED}
    assert Counter(m.id for m in tap(url, topic)) == {f"event-{n}": 1 for n in range(1, 7)}


@pytest.mark.promise("P2")
async def test_what_is_given_up_is_purged_and_never_goes_out_later(behind_a_proxy, make, reporter):
    proxy, url = behind_a_proxy
    topic = make_topic(url)
    broker = await make(url, publish_seconds=2, answer_seconds=2)
    before, during, after = (
        run(topic, 5, [k], first=n) for k, n in (("a", 1), ("b", 10), ("c", 20))
    )
    await broker.publish(before, reporter)
    proxy.swallow("requests")  # they never arrive
    try:
        await broker.publish(during, reporter)
        await until(lambda: not producers(), 15)  # whoever could still send them
    finally:
        proxy.heal()
    assert {reporter.verdict(r) for r in during} <= {
        Verdict.UNKNOWN,
        Verdict.OUTAGE,
        Verdict.UNSENT,
    }
    assert reporter.verdict(during[0]) in (Verdict.UNKNOWN, Verdict.OUTAGE)

    async def sent():  # on a busy machine a second may be too short for a confirm
        more = RecordingReporter()
        await broker.publish(after, more)
        return more.ids(Verdict.CONFIRMED) == [r.id for r in after]

    await until(sent, PATIENCE)
    seen, again = [m.id for m in tap(url, topic)], {r.id for r in after}
    assert [i for i in seen if i not in again] == [r.id for r in before]
    assert again <= set(seen)


def producers():
    """The threads of producers in this process."""
    return [thread for thread in threading.enumerate() if thread.name == "postroom-kafka"]


async def _is_healthy(broker):
    try:
        await broker.health()
    except Exception:
        return False
    return True


async def test_a_cancelled_publish_reports_nothing_more_and_leaves_nothing_behind(
    behind_a_proxy, make, reporter
):
    proxy, url = behind_a_proxy
    topic = make_topic(url)
    broker = await make(url)
    (before,) = run(topic, 1, ["a"])
    await broker.publish([before], reporter)
    proxy.swallow("requests")
    try:
        publishing = asyncio.create_task(broker.publish(run(topic, 5, ["b"], first=2), reporter))
        await asyncio.to_thread(proxy.wait_swallowed)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
    finally:
        proxy.heal()
    await until(lambda: _is_healthy(broker), PATIENCE)
    after = run(topic, 3, ["c"], first=10)
    await broker.publish(after, reporter)
    assert [r.id for r, _ in reporter.reports] == [r.id for r in [before, *after]]
    assert {m.id for m in tap(url, topic)} == {r.id for r in [before, *after]}


@pytest.mark.promise("K3")
async def test_close_does_not_hang_on_a_broker_that_says_nothing(behind_a_proxy, reporter):
    proxy, url = behind_a_proxy
    topic = make_topic(url)
    broker = KafkaBroker(url, publish_seconds=60)
    await broker.open()
    await broker.publish(run(topic, 1), reporter)
    proxy.swallow("replies")
    try:
        publishing = asyncio.create_task(broker.publish(run(topic, 5, first=2), reporter))
        await asyncio.to_thread(proxy.wait_swallowed)
        async with asyncio.timeout(PATIENCE):
            await broker.close()
            await publishing
    finally:
        proxy.heal()
    assert {o.verdict for _, o in reporter.reports[1:]} <= {Verdict.UNKNOWN, Verdict.OUTAGE}
    # Closed is closed; and it can be opened again.
    more = RecordingReporter()
    (record,) = run(topic, 1, first=100)
    await broker.publish([record], more)
    assert more.verdict(record) is Verdict.OUTAGE
    with pytest.raises(Exception, match="closed"):
        await broker.health()
    await broker.open()
    again = RecordingReporter()
    await until(lambda: _is_healthy(broker), PATIENCE)
    await broker.publish([record], again)
    await broker.close()
    assert again.verdict(record) is Verdict.CONFIRMED


def test_no_thread_of_a_closed_broker_stays(kafka_url, tmp_path):
    """In a process of its own, so that it also must come to its end."""
    topic = make_topic(kafka_url)
    program = f"""
import asyncio, os
from concurrent.futures import ThreadPoolExecutor
from postroom.brokers.kafka import KafkaBroker
from postroom.testing.broker_tools import RecordingReporter, make_record

def threads():
    return len(os.listdir("/proc/self/task"))

async def main():
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    few = threads()
    for n in range(3):
        broker = KafkaBroker({kafka_url!r})
        await broker.open()
        await broker.publish([make_record(n, topic={topic!r})], reporter := RecordingReporter())
        await broker.publish_alone(make_record(n + 10, topic={topic!r}), reporter)
        assert [o.verdict.value for _, o in reporter.reports] == ["confirmed"] * 2
        await broker.close()
    for _ in range(200):  # a thread that has ended may be seen for a moment
        if threads() <= few + 2:
            break
        await asyncio.sleep(0.05)
    print(few, threads())

asyncio.run(main())
"""
    path = os.pathsep.join([str(Path(__file__).parents[2])])
    done = subprocess.run(
        [os.sys.executable, "-W", "error", "-c", program],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    before, after = map(int, done.stdout.split())
    assert after <= before + 2  # the event loop's own pool of threads
