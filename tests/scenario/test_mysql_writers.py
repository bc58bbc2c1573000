"""Writers that are not coordinated, on MariaDB: strict numbers without gaps, and the order kept."""

from __future__ import annotations

import asyncio
import random

import asyncmy
import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import TransactionError
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.stores.mysql import MysqlStore
from tests.contract.mysql_database import own_database
from tests.scenario.place import QUICK, until

WRITERS, KEYS, EVENTS = 8, 5, 40
AGAIN = (1213, 1205)


@pytest.fixture
def database(mariadb_url):
    with own_database(mariadb_url) as database:
        yield database


class _RolledBackError(Exception):
    pass


@pytest.mark.slow
@pytest.mark.req("S4.2", "S4.6")
@pytest.mark.promise("W9", "G4", "G1")
@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "READ COMMITTED"])
async def test_strict_numbers_have_no_gap_and_arrive_in_order(database, isolation):
    """8 writers on 5 keys, a third of all transactions rolled back, a relay beside them."""
    await MysqlStore(database.url).migrate()
    committed, broker = [], MemoryBroker()

    async def write(number):
        dice = random.Random(number)
        connection = await asyncmy.connect(**database.arguments, charset="utf8mb4")
        try:
            async with connection.cursor() as cursor:
                await cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
            for turn in range(EVENTS):
                events = [
                    Event("t", id=f"{number}-{turn}-{n}", key=f"k{dice.randrange(KEYS)}")
                    for n in range(dice.choice([1, 1, 3]))
                ]
                rolled_back = dice.random() < 0.33
                while not await _try(connection, events, rolled_back):
                    pass
                if not rolled_back:
                    committed.extend(event.id for event in events)
        finally:
            await connection.ensure_closed()

    async with Relay(database.url, broker, **QUICK) as relay:
        async with asyncio.timeout(120):
            await asyncio.gather(*(write(n) for n in range(WRITERS)))
        await until(lambda: relay.counts.done == len(committed), 60)
    seen = [message.record for message in broker.messages]
    assert sorted(r.id for r in seen) == sorted(committed)
    for key in {r.key for r in seen}:
        numbers = [r.kseq for r in seen if r.key == key]
        assert numbers == list(range(1, len(numbers) + 1))


async def _try(connection, events, rolled_back):
    """Write in one transaction; False if the server asks to start over (W4)."""
    try:
        await connection.begin()
        await Outbox(ordering="strict").add_many(connection, events)
        await asyncio.sleep(0)
        if rolled_back:
            await connection.rollback()
        else:
            await connection.commit()
    except (asyncmy.errors.OperationalError, TransactionError) as error:
        cause = error.__cause__ or error
        if not isinstance(cause, asyncmy.errors.OperationalError) or cause.args[0] not in AGAIN:
            raise
        await connection.rollback()
        return False
    return True


@pytest.mark.req("S4.6", "S4.7")
@pytest.mark.promise("G4", "W8")
async def test_writers_that_lock_the_same_row_first_are_seen_in_their_order(database):
    """Coordinated writers need no numbers: the row lock comes before the event's place."""
    await MysqlStore(database.url).migrate()
    database.run(
        "CREATE TABLE account (id INT PRIMARY KEY, n INT)", "INSERT INTO account VALUES (1, 0)"
    )
    broker = MemoryBroker()

    async def pay(writer):
        connection = await asyncmy.connect(**database.arguments, charset="utf8mb4")
        try:
            for _ in range(20):
                await connection.begin()
                async with connection.cursor() as cursor:
                    await cursor.execute("UPDATE account SET n = n + 1 WHERE id = 1")
                    await cursor.execute("SELECT n FROM account WHERE id = 1")
                    ((number,),) = await cursor.fetchall()
                await Outbox().add(connection, Event("paid", {"n": number}, key="account-1"))
                await connection.commit()
        finally:
            await connection.ensure_closed()

    async with Relay(database.url, broker, **QUICK) as relay:
        await asyncio.gather(*(pay(n) for n in range(5)))
        await until(lambda: relay.counts.done == 100, 30)
    assert [m.record.data["n"] for m in broker.messages] == list(range(1, 101))
