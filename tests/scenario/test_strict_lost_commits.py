"""Strict numbers after the database has lost commits: what an operator does (decision 0016)."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from postroom import Consumer, Handlers, Relay
from postroom.broker import Broker, BrokerCapabilities
from postroom.engine.consumer.messages import to_message
from postroom.outbox import Outbox
from postroom.sources.memory import MemoryQueue, MemorySource
from postroom.stores.memory import MemoryStore
from postroom.stores.postgres import PostgresStore
from postroom.testing.store.tools import event
from tests.scenario.place import until
from tests.scenario.postgres_place import opened, own_schema, writing

DECISION = Path(__file__).parents[2] / "docs/decisions/0016-strict-numbers-after-lost-commits.md"


class Wire(Broker):
    """A broker whose messages a consumer in this process receives."""

    capabilities = BrokerCapabilities()

    def __init__(self, queue):
        self.queue = queue

    async def open(self): ...

    async def close(self): ...

    async def health(self): ...

    async def publish(self, batch, reporter):
        self.queue.send(*(to_message(record, reporter.outbox_id) for record in batch))
        reporter.confirm(batch)

    async def publish_alone(self, record, reporter):
        await self.publish([record], reporter)


def operators_way():
    """Return the statement that the decision tells operators to run."""
    (statement,) = re.findall(r"`(UPDATE [^`]+)`", DECISION.read_text(encoding="utf-8"))
    return statement.replace("\n", " ")


@pytest.mark.promise("W9", "I4")
async def test_an_outbox_with_a_new_id_is_heard_after_its_numbers_went_back(postgres_url):
    """E: strict numbers after a fail-over."""
    queue, inbox, effects = MemoryQueue(), MemoryStore(), []
    handlers = Handlers(name="payments", strict="current")

    @handlers.on("tested")
    async def note(event, tx):
        effects.append(event.id)

    with own_schema(postgres_url) as url:
        async with opened(url):
            pass

        async def send(*names):
            async with writing(url) as connection:
                for name in names:
                    await Outbox(ordering="strict").add(connection, event(name, "k"))
            await Relay(PostgresStore(url), Wire(queue)).drain()

        async def is_over():
            kept = await inbox.get("inbox/payments/dropped")
            return kept is not None and kept.state == "done"

        async with Consumer(MemorySource(queue), inbox, handlers, mode="durable"):
            await send("e1", "e2", "e3")
            await until(lambda: effects == ["e1", "e2", "e3"])
            with psycopg.connect(url) as connection:  # the commits of e2 and e3 are lost
                connection.execute("DELETE FROM postroom_outbox WHERE id IN ('e2', 'e3')")
                connection.execute("UPDATE postroom_counter SET last = last - 2")
            await send("dropped")  # the price until somebody acts: it has the number of e2
            await until(is_over)
            with psycopg.connect(url) as connection:
                assert connection.execute(operators_way()).rowcount == 1
            await send("heard", "too")
            await until(lambda: effects[3:] == ["heard", "too"])
    assert effects == ["e1", "e2", "e3", "heard", "too"]
