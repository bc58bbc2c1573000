"""`postroom run` with a [[consumer]] section: from a real queue through the inbox to handlers."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import aio_pika
import pytest

from tests.cli.command import Running, call
from tests.cli.test_observability import fetch, until

APP = """
from postroom.engine.handlers.handlers import Handlers

handlers = Handlers(name="payments")

@handlers.on("order.created")
async def charge(event, tx):
    await tx.execute("INSERT INTO payments VALUES (?)", (event.id,))
"""


async def publish(url, queue, ids):
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        for name in ids:
            message = aio_pika.Message(
                json.dumps({"id": name}).encode(), message_id=name, content_type="application/json",
                headers={"postroom-id": name, "postroom-type": "order.created"},
            )  # fmt: skip
            await channel.default_exchange.publish(message, queue)


@pytest.mark.slow
@pytest.mark.promise("G6")
def test_a_relay_and_a_consumer_in_one_process(tmp_path, sqlite_place, rabbitmq_url):
    import sqlite3

    sqlite_place.migrate()
    conn = sqlite3.connect(tmp_path / "app.db", timeout=15)
    conn.execute("CREATE TABLE payments (id TEXT)")
    conn.commit()
    (tmp_path / "shop_app.py").write_text(APP)
    queue = f"cli-{uuid4().hex[:12]}"
    base = rabbitmq_url.partition("?")[0]
    (tmp_path / "postroom.toml").write_text(
        f'store = "{sqlite_place.url}"\nmetrics_port = 0\n'
        '[[relay]]\nbroker = "null:"\n'
        f'[[consumer]]\nsource = "{base}?queue={queue}&declare=true"\n'
        'handlers = "handlers:shop_app:handlers"\n'
    )
    with Running("run", cwd=tmp_path) as process:
        port = int(process.hear(r"metrics host=\S+ port=(\d+)")[1])
        process.hear("starting .*stream=main .*broker=null:")
        process.hear("starting .*consumer=payments .*source=.?amqp")

        def ready():
            told = json.loads(fetch(port, "/readyz")[1])
            return told if told["ready"] else None

        assert until(ready)["consumers"] == [
            {"name": "payments", "running": True, "connected": True}
        ]
        asyncio.run(publish(base, queue, ["a", "b", "a"]))
        until(lambda: conn.execute("SELECT count(*) FROM payments").fetchone() == (2,))
        process.send()
        assert process.end() == 0
    said = "".join(process.lines)
    assert "stopped stream=main how=gracefully" in said
    assert "stopped consumer=payments how=gracefully" in said
    assert conn.execute("SELECT id FROM payments ORDER BY id").fetchall() == [("a",), ("b",)]
    conn.close()


def test_a_source_that_makes_no_sense_names_its_line(tmp_path, sqlite_place):
    (tmp_path / "shop_app.py").write_text(APP)
    (tmp_path / "postroom.toml").write_text(
        f'store = "{sqlite_place.url}"\n'
        '[[consumer]]\nsource = "amqpp://h/?queue=q"\nhandlers = "handlers:shop_app:handlers"\n'
    )
    done = call("run", cwd=tmp_path)
    assert done.returncode == 2
    assert "postroom.toml:3: unknown source scheme 'amqpp'; did you mean 'amqp'?" in done.stderr
