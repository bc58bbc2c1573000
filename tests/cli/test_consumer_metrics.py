"""What a running consumer shows: every documented metric has a value in a busy, faulty run."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from uuid import uuid4

import aio_pika
import pytest

from postroom.event import Event
from postroom.telemetry.metric_names import documented
from tests.cli.command import Running
from tests.cli.test_observability import APP, CANARY, fetch, until, value

CONSUMER = """
from postroom.engine.handlers.handlers import Handlers
from postroom.errors import Reject

handlers = Handlers(name="payments")
tries = []

@handlers.on("order.created")
async def charge(event, tx):
    pass

@handlers.on("bad")
async def bad(event, tx):
    raise Reject("password=c4nary-s3cret")

@handlers.on("shaky")
async def shaky(event, tx):
    tries.append(event.id)
    if len(tries) < 2:
        raise ConnectionError("amqp://user:c4nary-s3cret@host refused")
"""


async def publish(url, queue, messages):
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        for name, kind in messages:
            message = aio_pika.Message(
                json.dumps({"card": "4711-0815", "name": name}).encode(), message_id=name,
                content_type="application/json", headers={"postroom-type": kind},
            )  # fmt: skip
            await channel.default_exchange.publish(message, queue)


@pytest.mark.slow
@pytest.mark.req("S2.7")
@pytest.mark.parametrize("mode", ["direct", "durable"])
def test_every_documented_metric_of_a_busy_faulty_run(tmp_path, sqlite_place, rabbitmq_url, mode):
    sqlite_place.migrate()
    sqlite_place.add(
        Event("good", {}, id="g", key="k", topic="goods"), Event("bad", id="b", key="b"),
        Event("shaky", id="s", key="s"),
    )  # fmt: skip
    (tmp_path / "busy_app.py").write_text(APP)
    (tmp_path / "pay_app.py").write_text(CONSUMER)
    queue = f"metrics-{uuid4().hex[:12]}"
    base = rabbitmq_url.partition("?")[0]
    (tmp_path / "postroom.toml").write_text(
        f'store = "{sqlite_place.url}"\nmetrics_port = 0\nlog_level = "debug"\n'
        '[[relay]]\nbroker = "handlers:busy_app:handlers"\nbackoff_seconds = 0.01\n'
        f'[[consumer]]\nsource = "{base}?queue={queue}&declare=true"\nmode = "{mode}"\n'
        'handlers = "handlers:pay_app:handlers"\n'
    )
    with Running("run", cwd=tmp_path) as process:
        port = int(process.hear(r"metrics host=\S+ port=(\d+)")[1])
        until(lambda: json.loads(fetch(port, "/readyz")[1])["ready"])
        messages = [("a", "order.created"), ("b", "order.created"), ("a", "order.created")]
        messages += [("x", "bad"), ("s", "shaky"), ("c", "order.created")]
        asyncio.run(publish(base, queue, messages))

        def finished():
            _, metrics = fetch(port, "/metrics")
            dead = value(metrics, "postroom_messages_dead_total", consumer="payments")
            handled = value(metrics, "postroom_messages_handled_total", consumer="payments")
            seen = value(metrics, "postroom_events", stream="inbox.payments", state="dead")
            done = value(metrics, "outbox_done_total", stream="main")
            return metrics if (dead, handled, seen, done) == (1, 4, 1, 3) else ""

        metrics = until(finished)
        ready = json.loads(fetch(port, "/readyz")[1])
        assert "stream inbox.payments has 1 dead letter" in ready["warnings"]
        process.send()
        assert process.end() == 0

    def of(name):
        return value(metrics, f"postroom_messages_{name}_total", consumer="payments")

    direct = mode == "direct"
    assert (of("received"), of("failed"), of("dead"), of("lost")) == (6, 1, 1, 0)
    assert (of("stored"), of("repeated")) == ((0, 1) if direct else (6, 0))
    assert value(metrics, "postroom_consumer_up", consumer="payments") == 1
    assert value(metrics, "postroom_consumer_connected", consumer="payments") == 1
    assert value(metrics, "postroom_consumer_connections_lost_total", consumer="payments") == 0
    assert value(metrics, "postroom_messages_in_flight", consumer="payments") == 0
    assert value(metrics, "postroom_handling_seconds_count", consumer="payments") == (
        7 if direct else 0
    )
    delivered = value(
        metrics, "postroom_events_confirmed_total", stream="inbox.payments", destination="handlers"
    )
    assert delivered == (0 if direct else 4)

    # Every documented name has a value, and nothing else is there; Prometheus has no objection.
    # SQLite has no LISTEN and NOTIFY.
    valued = {re.match(r"\w+", line)[0] for line in metrics.splitlines() if line[0] != "#"}
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in valued} == set(documented()) - {
        "postroom_notifications_up", "postroom_limit_per_second", "postroom_limit_in_flight",
    }  # fmt: skip
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    for secret in (CANARY, "4711-0815"):
        assert secret not in metrics + "".join(process.lines)
    asyncio.run(clean(base, queue))


async def clean(url, queue):
    connection = await aio_pika.connect(url)
    async with connection:
        await (await connection.channel()).queue_delete(queue)
