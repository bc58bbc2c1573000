"""The demo's broker keeps the contract of brokers, and its receiver applies things once."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from postroom.broker import Verdict
from postroom.demo.receiver import Books, Server
from postroom.demo.screen import Screen
from postroom.demo.wire import Message, WireBroker
from postroom.stores.sqlite import SqliteStore
from postroom.testing.broker import BrokerContract
from postroom.testing.broker_tools import PATIENCE_SECONDS, Arrival, RecordingReporter, make_record


class Post:
    """A receiver in this process: keeps what arrives, chokes on what it is told to."""

    def __init__(self):
        self.messages = []
        self.poison = set()
        self.changed = asyncio.Event()
        self.server = None
        self.port = 0

    async def start(self):
        self.server = Server(self.take, self.changed.set)
        self.port = await self.server.start(self.port)

    def take(self, message, relay):
        if message.id in self.poison:
            raise ValueError("poison")
        self.messages.append(message)

    async def until(self, true):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not true():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def post():
    post = Post()
    await post.start()
    yield post
    post.server.stop()


@pytest.fixture
async def broker(post):
    broker = WireBroker("127.0.0.1", post.port)
    await broker.open()
    yield broker
    await broker.close()


async def until_broken(broker):
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait({broker._link._listening})


class TestWireBroker(BrokerContract):
    abilities = frozenset({"outage", "any_topic"})

    @pytest.fixture
    async def broker(self, post):
        broker = WireBroker("127.0.0.1", post.port)
        await broker.open()
        yield broker
        await broker.close()

    @pytest.fixture
    def arrived(self, post):
        async def read():
            return [Arrival(m.id, m.type, m.topic, m.key, m.payload) for m in post.messages]

        return read

    @pytest.fixture
    def outage(self, broker, post):
        async def go_away():
            post.server.stop()
            await until_broken(broker)

        return go_away, post.start


@pytest.mark.promise("P2", "G4")
async def test_a_hang_up_leaves_what_was_sent_unknown_and_nothing_passes_it(broker, post):
    batch = [make_record(n, key="k") for n in range(1, 6)]
    post.poison.add(batch[2].id)
    reporter = RecordingReporter()
    await broker.publish(batch, reporter)
    assert [reporter.verdict(r) for r in batch[2:]] == [Verdict.UNKNOWN] * 3
    assert [m.id for m in post.messages] == [batch[0].id, batch[1].id]
    assert (
        "disconnected" in reporter.outcome(batch[2]).error
        or "broke" in reporter.outcome(batch[2]).error
    )


@pytest.mark.promise("P3")
async def test_a_suspect_has_a_connection_of_its_own(broker, post):
    poison, good = make_record(1, key="bad"), make_record(2, key="good")
    post.poison.add(poison.id)
    post.server.hold()
    reporter = RecordingReporter()
    publishing = asyncio.create_task(broker.publish([good], reporter))
    await post.until(lambda: post.server.unacked == 1)
    await broker.publish_alone(poison, reporter)
    assert reporter.verdict(poison) is Verdict.UNKNOWN
    post.server.release()
    await publishing
    assert reporter.verdict(good) is Verdict.CONFIRMED


async def test_acks_that_are_kept_back_arrive_when_released(broker, post):
    batch = [make_record(n, key=f"k{n}") for n in range(3)]
    post.server.hold()
    reporter = RecordingReporter()
    publishing = asyncio.create_task(broker.publish(batch, reporter))
    await post.until(lambda: post.server.unacked == 3)
    assert reporter.reports == []
    post.server.release()
    await publishing
    assert reporter.ids(Verdict.CONFIRMED) == [r.id for r in batch]


@pytest.mark.promise("G2", "P2")
async def test_a_full_hold_loses_what_is_on_the_wire(broker, post):
    batch = [make_record(n, key=f"k{n}") for n in range(5)]
    post.server.hold(limit=2)
    reporter = RecordingReporter()
    publishing = asyncio.create_task(broker.publish(batch, reporter))
    await post.until(lambda: post.server.unacked == 2)
    post.server.release()
    await publishing
    assert [m.id for m in post.messages] == [batch[0].id, batch[1].id]
    assert reporter.ids(Verdict.UNKNOWN)[-3:] == [r.id for r in batch[2:]]


async def test_a_cancelled_publish_reports_nothing_more(broker, post):
    record, other = make_record(1, key="a"), make_record(2, key="b")
    post.server.hold()
    reporter = RecordingReporter()
    publishing = asyncio.create_task(broker.publish([record], reporter))
    await post.until(lambda: post.server.unacked == 1)
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    post.server.release()
    await until_broken(broker)
    await broker.publish([other], reporter)
    assert [r.id for r, _ in reporter.reports] == [other.id]


async def test_when_nobody_is_there_it_is_an_outage(post):
    post.server.stop()
    broker = WireBroker("127.0.0.1", post.port)
    await broker.open()  # no error
    first, second, other = (make_record(n, key=k) for n, k in ((1, "a"), (2, "a"), (3, "b")))
    reporter = RecordingReporter()
    await broker.publish([first, second, other], reporter)
    await broker.publish_alone(alone := make_record(4, key="c"), reporter)
    assert reporter.ids(Verdict.OUTAGE) == [first.id, other.id, alone.id]
    assert reporter.ids(Verdict.UNSENT) == [second.id]
    await broker.close()


# -- the receiver's books -------------------------------------------------------------------------
@pytest.mark.req("S3.4", "S5.4")
@pytest.mark.promise("G6", "I1")
async def test_a_repeat_is_written_down_and_changes_nothing(tmp_path):
    path = tmp_path / "receiver.db"
    await SqliteStore(path).migrate()
    books = Books(path)
    placed = Message(1, "e1", "order.placed", "orders", "o1", None, b'{"status": "placed"}')
    paid = Message(2, "e2", "order.paid", "orders", "o1", None, b'{"status": "paid"}')
    for message, relay in ((placed, "one"), (paid, "one"), (placed, "two")):
        books.take(message, relay)
    with pytest.raises(ValueError):
        books.take(placed._replace(id="e3", payload=b"not JSON"), "two")
    assert (books.arrived, books.applied) == (3, 2)
    books.close()
    conn = sqlite3.connect(path)
    assert conn.execute("SELECT event_id, relay FROM arrivals ORDER BY n").fetchall() == [
        ("e1", "one"), ("e2", "one"), ("e1", "two"),
    ]  # fmt: skip
    assert conn.execute("SELECT event_id FROM effects ORDER BY n").fetchall() == [("e1",), ("e2",)]
    assert conn.execute("SELECT * FROM orders").fetchall() == [("o1", "paid")]
    conn.close()


# -- the screen -----------------------------------------------------------------------------------
class Terminal:
    encoding = "utf-8"

    def __init__(self, live):
        self.live = live
        self.text = ""

    def isatty(self):
        return self.live

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_on_a_terminal_progress_is_one_line_that_is_redrawn():
    times = iter([10.0, 10.05, 10.2])
    terminal = Terminal(live=True)
    screen = Screen(terminal, lambda: next(times))
    for text in ("1", "2", "3"):
        screen.progress(text)
    screen.news("killed")
    screen.clear()
    assert terminal.text == "\r\x1b[2K1\r\x1b[2K3\r\x1b[2Kkilled\n"


def test_elsewhere_progress_is_a_plain_line_now_and_then():
    times = iter([10.0, 11.0, 13.5])
    terminal = Terminal(live=False)
    screen = Screen(terminal, lambda: next(times))
    for text in ("1", "2", "3"):
        screen.progress(text)
    screen.news("killed")
    assert terminal.text == "1\n3\nkilled\n"


def test_the_bar():
    screen = Screen(Terminal(live=False))
    assert screen.bar(0.5) == "[########........]"
    assert screen.bar(-1) == "[" + "." * 16 + "]"
    assert screen.bar(7) == "[" + "#" * 16 + "]"
