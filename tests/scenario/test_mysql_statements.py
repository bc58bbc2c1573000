"""What a batch costs on MariaDB, counted by the server: five statements, whatever its size."""

from __future__ import annotations

import pytest

from postroom.brokers.memory import NullBroker
from postroom.engine.relay.relay import Relay
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.settlement import FailedOutcome
from postroom.store import ReadRequest
from postroom.stores.mysql import MysqlStore
from postroom.testing.store.tools import ALL, FAR, Hand
from tests.contract.mysql_database import own_database
from tests.scenario.place import until

# BEGIN, the fence, the change, COMMIT, and the one statement of a read.
PER_BATCH = 5
LIMIT = 6


@pytest.fixture
def database(mariadb_url):
    with own_database(mariadb_url) as database:
        yield database


async def add(database, count, keys):
    async with database.writing() as connection:
        added = [Event("t", {"n": n}, key=f"k{n % keys}" if keys else None) for n in range(count)]
        await Outbox().add_many(connection, added)


async def questions(session):
    """How many statements this session has asked for, this one not counted."""
    ((_, count),) = await session.query("SHOW SESSION STATUS LIKE 'Questions'")
    return int(count) - 1


@pytest.mark.req("S4.8")
@pytest.mark.parametrize("keep_done", [True, False])
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (100, 0), (1_000, 1), (1_000, 300), (3_000, 7)])
async def test_a_batch_of_any_size_costs_five_statements(database, rows, keys, keep_done):
    async with database.store(pool_size=1) as store:
        await add(database, rows, keys)
        hand = await Hand(store).take()
        async with store.session() as session:
            before = await questions(session)
        question = ReadRequest("main", ALL, rows, rows, 10**9, (), "anna", hand.held)
        records = await store.read(question)
        told = {record.id: f'{{"offset":{record.seq}}}' for record in records}
        assert await hand.settle(done=records, receipts=told, keep_done=keep_done) == set(ALL)
        async with store.session() as session:
            assert await questions(session) - before - 1 == PER_BATCH <= LIMIT
        assert len(records) == rows
        assert await hand.read() == []


@pytest.mark.parametrize("statement", ["settle_delete", "settle_delete_returning"])
async def test_a_settle_that_deletes_considers_the_primary_key_only(database, statement):
    """With the index by id, too, the optimizer combines every id with every number: seconds for 500."""
    async with database.store() as store:
        await add(database, 100, 10)
        async with store.session() as session:
            names = tuple(await session.query("SELECT seq, id FROM postroom_outbox"))
            seqs, lanes = tuple(seq for seq, _ in names), tuple(ALL)
            asked = session.say(statement, seqs=seqs, names=names, stream="main", lanes=lanes)
            plan = await session.query("EXPLAIN " + asked.partition("RETURNING")[0])
    ((_, _, _, _, possible, *_),) = plan
    assert possible == "PRIMARY"


async def test_only_the_first_statement_waits_for_its_answer(database):
    """BEGIN goes with the fence, COMMIT with the last change: two journeys for a settle."""
    async with database.store(pool_size=1) as store:
        await add(database, 10, 3)
        hand = await Hand(store).take()
        records = await hand.read()
        async with store.session() as session:
            sent, execute = [], session._cursor.execute

            class Counted:
                def __getattr__(self, name):
                    return getattr(cursor, name)

                async def execute(self, text):
                    sent.append(text)
                    return await execute(text)

            cursor, session._cursor = session._cursor, Counted()
        await hand.settle(done=records)
    assert [text.split(" ")[0].split(";")[0] for text in sent] == ["BEGIN", "UPDATE"]
    assert sent[1].endswith(";COMMIT")


@pytest.mark.req("S4.8")
async def test_a_relay_pays_by_the_batch_and_not_by_the_event(database, monkeypatch):
    store = MysqlStore(database.url + "?pool_size=1")
    await store.migrate()
    await add(database, 5_000, 50)
    calls = {"read": 0, "settle": 0}
    for name in calls:
        monkeypatch.setattr(MysqlStore, name, _tally(calls, name, getattr(MysqlStore, name)))
    relay = Relay(
        store, NullBroker(), batch_size=500, max_batch_size=500, lease_seconds=FAR, groups=1
    )
    async with relay:
        await until(lambda: relay.counts.done == 5_000, 30)
        async with store.session() as session:
            asked = dict(await session.query("SHOW SESSION STATUS LIKE 'Com\\_%'"))
    batches = 10
    assert calls["settle"] <= batches + 2
    assert calls["read"] <= 2 * batches + 10  # a wake may find nothing
    # Beats, takes and the stager go by time: they begin few transactions and change no event.
    assert int(asked["Com_update"]) <= 2 * batches + 6
    assert int(asked["Com_begin"]) <= batches + 10
    assert int(asked["Com_insert"]) + int(asked["Com_delete"]) <= 6


def _tally(calls, name, method):
    async def tallied(self, *args, **kwargs):
        calls[name] += 1
        return await method(self, *args, **kwargs)

    return tallied


async def test_failures_cost_statements_by_the_batch_too(database):
    """Twenty failing keys of one batch: one statement for all heads and one for all blocks."""
    async with database.store(pool_size=1) as store:
        await add(database, 200, 20)
        hand = await Hand(store).take()
        heads = list({r.key_hash: r for r in reversed(await hand.read())}.values())

        async def cost(**outcomes):
            async with store.session() as session:
                before = await questions(session)
            await hand.settle(**outcomes)
            async with store.session() as session:
                return await questions(session) - before - 1

        assert await cost(failed=[FailedOutcome(r, 1, 60.0, "boom") for r in heads]) == 5
        followers = await hand.read()
        assert len(followers) == 180
        assert await cost(parked=followers) == 4


async def test_the_counts_of_many_streams_cost_few_statements(database):  # E-8
    async with database.store(pool_size=1) as store:

        async def cost():
            async with store.session() as session:
                before = await questions(session)
            stats = await store.stats()
            async with store.session() as session:
                return stats, await questions(session) - before - 1

        costs = []
        for first, last in ((0, 30), (30, 120)):
            async with database.writing() as connection:
                added = [Event("t", stream=f"s{n}") for n in range(first, last)]
                await Outbox().add_many(connection, added)
            stats, statements = await cost()
            assert stats.counts["pending"] == last
            assert stats.lag_seconds > 0
            costs.append(statements)
        assert costs[0] == costs[1] < 30


async def test_a_mend_with_nothing_to_mend_looks_at_the_heads_alone(database):  # T-D.4
    """Not at the thousands of events that wait behind them, nor at those of other keys."""
    heads, followers = 100, 2_000
    async with database.store(pool_size=1) as store:
        await add(database, heads, heads)
        hand = await Hand(store).take()
        records = await hand.read(rows=heads, per_lane=heads)
        await hand.settle(failed=[FailedOutcome(r, 1, FAR, "boom") for r in records])
        await add(database, followers, heads)

        async def looked_at(session):
            rows = await session.query("SHOW SESSION STATUS LIKE 'Handler_read%'")
            return sum(int(number) for _, number in rows)

        async with store.session() as session:
            before = await looked_at(session)
            own = await looked_at(session) - before  # what the question itself costs
        assert await store.repair_blocks("main", "anna", hand.held, 100) == 0
        async with store.session() as session:
            assert await looked_at(session) - before - 2 * own < 6 * heads
