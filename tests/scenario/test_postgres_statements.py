"""What a batch costs on PostgreSQL, in statements that the server itself reports: two.

BEGIN and COMMIT are counted. Beats and the stager's looks go by time, not by batches; they are
counted apart.
"""

from __future__ import annotations

from collections import defaultdict
from contextvars import ContextVar
from functools import partial

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker, NullBroker
from postroom.event import Event
from postroom.retry import Constant, RetryPolicy
from postroom.stores.postgres import PostgresStore, store
from postroom.stores.postgres.connector import RelayConnection
from postroom.stores.postgres.floors import Floors
from tests.scenario.place import Receipts
from tests.scenario.postgres_place import PostgresPlace, own_schema

ONE_GROUP = {"batch_size": 500, "max_batch_size": 500, "groups": 1}
CALLS = (
    "read",
    "settle",
    "stage",
    "heartbeat",
    "take",
    "repair_blocks",
    "leave",
    "prune",
    "release",
    "stats",
)
_call = ContextVar("call", default=None)


class Call:
    def __init__(self, name):
        self.name = name
        self.statements = []
        self.size = 0


class Bill:
    """What each call of a store cost."""

    def __init__(self):
        self.calls = []
        self.others = []  # of calls that are not made for batches: identity

    def of(self, *names):
        return [call for call in self.calls if call.name in names]

    def statements(self, *names):
        return sum(len(call.statements) for call in self.of(*names))

    def batches(self):
        """Reads that found something."""
        return [call for call in self.of("read") if call.size]


@pytest.fixture
def bill(monkeypatch):
    """Have the server tell of every statement that it runs for a relay."""
    made, connect = Bill(), RelayConnection.connect.__func__

    def told(notice):
        kind = notice.message_primary.partition(":")[0]
        if kind == "statement" or kind.startswith("execute"):
            call = _call.get()
            (made.others if call is None else call.statements).append(notice.message_primary)

    async def connecting(cls, *args, **kwargs):
        connection = await connect(cls, *args, **kwargs)
        connection.add_notice_handler(told)
        return connection

    monkeypatch.setattr(RelayConnection, "connect", classmethod(connecting))
    # On a busy machine all reads may be slow, and the store would ask why.
    monkeypatch.setattr(store, "Floors", partial(Floors, slow_seconds=3_600.0))
    for name in CALLS:
        monkeypatch.setattr(PostgresStore, name, _billed(made, name))
    return made


def _billed(bill, name):
    method = getattr(PostgresStore, name)

    async def billed(self, *args, **kwargs):
        call = Call(name)
        token = _call.set(call)
        try:
            result = await method(self, *args, **kwargs)
            call.size = len(result) if isinstance(result, list | set) else 0
            return result
        finally:
            _call.reset(token)
            bill.calls.append(call)

    return billed


@pytest.fixture(params=["postgres_url", "postgres18_url"])
async def place(request, bill):
    with own_schema(request.getfixturevalue(request.param)) as url:
        telling = "-clog_statement%3Dall%20-cclient_min_messages%3Dlog%20"
        made = PostgresPlace(url.replace("options=", f"options={telling}"))
        await made.open()
        yield made
        await made.close()


def batch(keys, count=500):
    return [Event("made", n, key=f"k{n % keys}") for n in range(count)]


@pytest.mark.parametrize("keep_done_seconds", [86_400.0, 0.0])
@pytest.mark.parametrize("keys", [500, 20, 1])
async def test_a_batch_of_500_costs_two_statements(place, bill, keys, keep_done_seconds):
    await place.write(*batch(keys))
    broker = Receipts()
    counts = await place.relay(broker, keep_done_seconds=keep_done_seconds, **ONE_GROUP).drain()
    assert (counts.done, broker.confirmed) == (500, 500)
    assert [(call.size, len(call.statements)) for call in bill.batches()] == [(500, 1)]
    assert [len(call.statements) for call in bill.of("settle")] == [1]


async def test_a_backlog_costs_two_statements_a_batch(place, bill):
    """With the default groups and overlap."""
    await place.write(*batch(300, 4_000))
    counts = await place.relay(NullBroker(), batch_size=500, max_batch_size=500).drain()
    assert counts.done == 4_000
    assert len(bill.batches()) <= 12
    assert all(len(call.statements) == 1 for call in bill.of("read", "settle"))
    assert len(bill.of("settle")) <= len(bill.batches()) + 2


@pytest.mark.parametrize("keys", [500, 1])
async def test_a_batch_whose_heads_all_fail_costs_one_transaction(place, bill, keys):
    await place.write(*batch(keys))
    broker = MemoryBroker()
    broker.script(lambda _: Outcome(Verdict.FAILED, "boom"))
    later = RetryPolicy(backoff=Constant(3_600.0))
    counts = await place.relay(broker, retry=later, **ONE_GROUP).drain()
    assert counts.failed == keys
    first = bill.of("settle")[0]
    # BEGIN with its settings, the fence, the histories, the failures, their blocks, COMMIT.
    assert len(first.statements) == 6, first.statements


async def test_beats_and_looks_do_not_grow_with_the_batch(place, bill):
    await place.write(*batch(500))
    await place.relay(NullBroker(), **ONE_GROUP).drain()
    most = defaultdict(int)
    for call in bill.calls:
        most[call.name] = max(most[call.name], len(call.statements))
    assert most["stage"] == 1  # all that an idle relay asks
    assert most["repair_blocks"] == 1  # where there is nothing to mend
    assert most["heartbeat"] <= 9
    assert most["take"] <= 5
    assert most["leave"] <= 11  # a look before and after: locked lanes are tried again


async def test_the_counts_of_all_streams_cost_what_those_of_one_do(place, bill):  # E-8
    await place.write(*(Event("made", key="k", stream=f"s{n:02}") for n in range(50)))
    alone = await place.store.stats("s07")
    assert (alone.counts["pending"], (await place.store.stats()).counts["pending"]) == (1, 50)
    assert alone.lag_seconds > 0
    one, every = (len(call.statements) for call in bill.of("stats"))
    assert every == one + 1  # their names


async def test_the_server_told_of_everything(place, bill):
    """The count rests on what it reports: with nothing reported it would prove nothing."""
    await place.write(*batch(5))
    await place.relay(NullBroker(), **ONE_GROUP).drain()
    (read,) = bill.batches()
    assert "postroom_read3(" in read.statements[0]
    assert "postroom_settle3(" in bill.of("settle")[0].statements[0]
    assert "postroom_member" in bill.of("heartbeat")[0].statements[0]
    leave = bill.of("leave")[-1].statements
    assert "BEGIN ISOLATION LEVEL READ COMMITTED" in leave[0]
    assert "statement: COMMIT" in leave
