"""What a batch costs on SQLite, in statements: at most five, whatever the number of keys.

BEGIN and COMMIT are not counted. Beats and the stager's looks go by time, not by batches; they are
counted apart.
"""

from __future__ import annotations

from contextvars import ContextVar

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker, NullBroker
from postroom.event import Event
from postroom.retry import Constant, RetryPolicy
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite.thread import DatabaseThread
from tests.scenario.place import Receipts, SqlitePlace

NOT_COUNTED = ("BEGIN", "COMMIT", "ROLLBACK")
_method = ContextVar("method", default="?")


class Bill:
    """What each call of the store cost: (method, statements, size of its answer)."""

    def __init__(self):
        self.calls = []

    def of(self, *methods):
        return [call for call in self.calls if call[0] in methods]

    def statements(self, *methods):
        return sum(len(statements) for _, statements, _ in self.of(*methods))


@pytest.fixture
def bill(monkeypatch):
    """Trace every connection of every SQLite store."""
    made, connect, call = Bill(), SqliteStore._connect, DatabaseThread.call
    traces = {}

    def traced(self, **options):
        database = connect(self, **options)
        lines = traces[id(database)] = []
        database.connection.set_trace_callback(lines.append)
        return database

    async def counted(self, work):
        method = _method.get()

        def do(database):
            lines = traces[id(database)]
            lines.clear()
            result = work(database)
            statements = [text for text in lines if not text.upper().startswith(NOT_COUNTED)]
            size = len(result) if isinstance(result, list | set) else 0
            made.calls.append((method, statements, size))
            return result

        return await call(self, do)

    monkeypatch.setattr(SqliteStore, "_connect", traced)
    monkeypatch.setattr(DatabaseThread, "call", counted)
    for name in (
        "read",
        "settle",
        "stage",
        "heartbeat",
        "take",
        "repair_blocks",
        "wait_for_change",
        "leave",
    ):
        monkeypatch.setattr(SqliteStore, name, _named(name, getattr(SqliteStore, name)))
    return made


def _named(name, method):
    async def named(self, *args, **kwargs):
        token = _method.set(name)
        try:
            return await method(self, *args, **kwargs)
        finally:
            _method.reset(token)

    return named


@pytest.fixture
async def place(tmp_path, bill):
    made = SqlitePlace(tmp_path / "app.db")
    await made.open()
    yield made
    await made.close()


def batch(keys, count=500):
    return [Event("made", n, key=f"k{n % keys}") for n in range(count)]


ONE_GROUP = {"batch_size": 500, "max_batch_size": 500, "groups": 1}


@pytest.mark.parametrize("keep_done_seconds", [86_400.0, 0.0])
@pytest.mark.parametrize("keys", [500, 20, 1])
async def test_a_batch_of_500_costs_at_most_five_statements(place, bill, keys, keep_done_seconds):
    await place.write(*batch(keys))
    broker = Receipts()
    counts = await place.relay(broker, keep_done_seconds=keep_done_seconds, **ONE_GROUP).drain()
    assert (counts.done, broker.confirmed) == (500, 500)
    reads = [call for call in bill.of("read") if call[2]]
    assert [size for _, _, size in reads] == [500]
    assert len(bill.of("settle")) == 1
    cost = sum(len(statements) for _, statements, _ in reads) + bill.statements("settle")
    assert cost <= 5


@pytest.mark.parametrize("keys", [500, 1])
async def test_a_batch_whose_heads_all_fail_costs_one_more(place, bill, keys):
    await place.write(*batch(keys))
    broker = MemoryBroker()
    broker.script(lambda _: Outcome(Verdict.FAILED, "boom"))
    later = RetryPolicy(backoff=Constant(3_600.0))
    counts = await place.relay(broker, retry=later, **ONE_GROUP).drain()
    assert counts.failed == keys
    first = next(call for call in bill.of("read") if call[2] == 500)
    settle = bill.of("settle")[0]
    assert len(first[1]) + len(settle[1]) <= 6  # one more: the histories are read


async def test_a_backlog_costs_at_most_five_statements_a_batch(place, bill):
    """With the default groups, batches and overlap."""
    await place.write(*batch(300, 4_000))
    counts = await place.relay(NullBroker(), batch_size=500, max_batch_size=500).drain()
    assert counts.done == 4_000
    batches = len([call for call in bill.of("read") if call[2]])
    assert batches <= 12
    assert (
        bill.statements("settle") + sum(len(c[1]) for c in bill.of("read") if c[2]) <= 5 * batches
    )


async def test_beats_and_looks_do_not_grow_with_the_batch(place, bill):
    await place.write(*batch(500))
    await place.relay(NullBroker(), **ONE_GROUP).drain()
    for method, most in (
        ("stage", 4),
        ("heartbeat", 8),
        ("take", 3),
        ("repair_blocks", 2),
        ("leave", 3),
    ):
        assert bill.of(method), method
        assert max(len(statements) for _, statements, _ in bill.of(method)) <= most, method
