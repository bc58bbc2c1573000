"""The contract of a Broker: the behaviour of every destination, as tests to inherit.

    class TestKafka(BrokerContract):
        abilities = frozenset({"refuse", "outage"})

        @pytest.fixture
        async def broker(self): ...

Tests of missing abilities are left out at collection, never skipped. Pin `abilities` by hand: one
that is removed must not make tests disappear unnoticed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest

from postroom.broker import Broker, Verdict
from postroom.record import Record
from postroom.testing.broker_port import BrokerPortContract
from postroom.testing.broker_tools import (
    HOSTILE,
    PATIENCE_SECONDS,
    Arrival,
    Held,
    RecordingReporter,
    make_record,
    needs,
)

UNSENDABLE: list[dict[str, Any]] = [
    {"headers_json": '{"retries": 1}'},
    {"headers_json": '{"none": null}'},
    {"headers_json": '{"nested": {"a": []}}'},
    {"headers_json": '["no", "object"]'},
    {"headers_json": "no JSON"},
    {"headers_json": '{"half": "\\ud800"}'},
    {"headers_json": '{"\\udfff": "half"}'},
    {"occurred_us": 2**62},
]
"""Values that a foreign row may hold and that cannot be sent."""

Build = Callable[..., list[Record]]
Arrived = Callable[[], Awaitable[list[Arrival]]]
Refuse = Callable[[Record], Record]
Hold = Callable[[Record], Held]
Outage = tuple[Callable[[], Any], Callable[[], Any]]


class BrokerContract(BrokerPortContract):
    """Inherit it, set the attributes, provide the fixtures. See the module.

    abilities   of: `refuse` (it can be made to refuse a given record), `hold` (a record can be
                delayed), `outage` (it can become unreachable and come back), `begin` (capability
                marks_start), `max_bytes`, `any_topic` (a topic may be any text, and need not exist)
    topic       an existing topic
    """

    abilities: ClassVar[frozenset[str]] = frozenset()
    topic: ClassVar[str] = "contract"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in dir(cls):
            test = getattr(cls, name)
            if not getattr(test, "needs", frozenset()) <= cls.abilities:
                setattr(cls, name, None)

    # -- to be given by the subclass ----------------------------------------------------------
    @pytest.fixture
    async def broker(self) -> Broker:
        """An opened, empty destination; the fixture closes it afterwards."""
        raise NotImplementedError

    @pytest.fixture
    def arrived(self, broker: Broker) -> Arrived:
        """Return everything at the destination, in order of arrival."""
        raise NotImplementedError

    @pytest.fixture
    def refuse(self, broker: Broker) -> Refuse:
        """Return a record, the given one or a variant, that the destination refuses."""
        raise NotImplementedError

    @pytest.fixture
    def hold(self, broker: Broker) -> Hold:
        """Delay this record until it is released."""
        raise NotImplementedError

    @pytest.fixture
    def outage(self, broker: Broker) -> Outage:
        """Two functions, sync or async: become unreachable, come back."""
        raise NotImplementedError

    # -- used by the tests --------------------------------------------------------------------
    @pytest.fixture
    def reporter(self) -> RecordingReporter:
        return RecordingReporter()

    @pytest.fixture
    def records(self) -> Build:
        """Build `n` records that cycle through `keys` (none: keyless)."""
        numbers: Iterator[int] = iter(range(1, 1_000_000))

        def build(n: int, keys: Sequence[str | None] = (None,), **given: Any) -> list[Record]:
            facts = {"topic": self.topic} | given
            return [make_record(next(numbers), key=keys[i % len(keys)], **facts) for i in range(n)]

        return build

    # -- one and many (S4.4) ------------------------------------------------------------------
    @pytest.mark.req("S1.3", "S4.4")
    async def test_one_record_arrives_and_is_confirmed(
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        (record,) = records(1, ["order-1"])
        await broker.publish([record], reporter)
        assert reporter.verdict(record) is Verdict.CONFIRMED
        assert [a.id for a in await arrived()] == [record.id]

    @pytest.mark.req("S4.4")
    async def test_each_record_of_a_batch_has_one_outcome(
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        batch = records(500, [f"order-{i}" for i in range(50)])
        await broker.publish(batch, reporter)
        assert Counter(r.id for r, _ in reporter.reports) == {r.id: 1 for r in batch}
        assert {o.verdict for _, o in reporter.reports} == {Verdict.CONFIRMED}
        assert Counter(a.id for a in await arrived()) == {r.id: 1 for r in batch}

    async def test_an_empty_batch_is_no_work(
        self, broker: Broker, reporter: RecordingReporter, arrived: Arrived
    ) -> None:
        await broker.publish([], reporter)
        assert reporter.reports == []
        assert await arrived() == []

    @pytest.mark.req("S4.6")
    @pytest.mark.promise("G4")
    async def test_a_key_arrives_in_its_order(
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        batch = records(120, ["a", "b", "c"])
        await broker.publish(batch, reporter)
        seen = await arrived()
        for key in ("a", "b", "c"):
            assert [a.id for a in seen if a.key == key] == [r.id for r in batch if r.key == key]

    async def test_several_batches_at_once(
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        batches = [records(60, [f"{n}-{i}" for i in range(5)]) for n in range(4)]
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
            for batch in batches:
                group.create_task(broker.publish(batch, reporter))
        for record in [r for batch in batches for r in batch]:
            assert reporter.verdict(record) is Verdict.CONFIRMED
        seen = await arrived()
        for batch in batches:
            for key in {r.key for r in batch}:
                assert [a.id for a in seen if a.key == key] == [r.id for r in batch if r.key == key]

    async def test_the_same_key_under_two_types_of_aggregate_is_two_keys(
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        orders = records(3, ["1"], aggregate_type="order")
        users = records(3, ["1"], aggregate_type="user")
        await broker.publish(
            [r for pair in zip(orders, users, strict=True) for r in pair], reporter
        )
        seen = [a.id for a in await arrived()]
        for run in (orders, users):
            ids = [r.id for r in run]
            assert [i for i in seen if i in ids] == ids

    # -- unconfirmed records (P1, P2) ---------------------------------------------------------
    @needs("refuse")
    @pytest.mark.promise("G4", "G7", "P1")
    async def test_nothing_of_a_key_passes_its_first_event_that_is_not_confirmed(
        self,
        broker: Broker,
        reporter: RecordingReporter,
        records: Build,
        arrived: Arrived,
        refuse: Refuse,
    ) -> None:
        batch = records(12, ["bad", "good"])
        bad = [i for i, r in enumerate(batch) if r.key == "bad"]
        batch[bad[2]] = refuse(batch[bad[2]])
        await broker.publish(batch, reporter)

        assert [reporter.verdict(batch[i]) for i in bad[:2]] == [Verdict.CONFIRMED] * 2
        assert reporter.verdict(batch[bad[2]]) not in (Verdict.CONFIRMED, Verdict.UNSENT)
        assert reporter.outcome(batch[bad[2]]).error
        for i in bad[3:]:
            assert reporter.verdict(batch[i]) in (Verdict.UNSENT, Verdict.UNKNOWN)
        good = [r for r in batch if r.key == "good"]
        assert [reporter.verdict(r) for r in good] == [Verdict.CONFIRMED] * 6
        seen = await arrived()
        assert [a.id for a in seen if a.key == "bad"] == [batch[i].id for i in bad[:2]]
        assert [a.id for a in seen if a.key == "good"] == [r.id for r in good]

    @needs("refuse")
    @pytest.mark.promise("G7")
    async def test_keyless_records_do_not_stop_each_other(
        self,
        broker: Broker,
        reporter: RecordingReporter,
        records: Build,
        arrived: Arrived,
        refuse: Refuse,
    ) -> None:
        batch = records(10)
        batch[3] = refuse(batch[3])
        await broker.publish(batch, reporter)
        others = batch[:3] + batch[4:]
        assert [reporter.verdict(r) for r in others] == [Verdict.CONFIRMED] * 9
        assert reporter.verdict(batch[3]) is not Verdict.CONFIRMED
        assert {a.id for a in await arrived()} == {r.id for r in others}

    @pytest.mark.promise("G4", "G7", "P2", "F1")
    async def test_an_event_that_no_message_can_hold_costs_itself_alone(  # E-4, X-H3
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        keys = [f"bad-{n}" for n in range(len(UNSENDABLE))]
        first, bad, later = (records(len(keys), keys) for _ in range(3))
        bad = [r._replace(**facts) for r, facts in zip(bad, UNSENDABLE, strict=True)]
        good = records(9, ["good"])
        batch = [*good[:3], *first, *good[3:6], *bad, *good[6:], *later]
        async with asyncio.timeout(PATIENCE_SECONDS):
            await broker.publish(batch, reporter)
        assert {reporter.verdict(r) for r in [*good, *first]} == {Verdict.CONFIRMED}
        for record, follower in zip(bad, later, strict=True):
            if reporter.verdict(record) is Verdict.CONFIRMED:
                continue  # some destinations do not check it
            assert reporter.verdict(record) in (Verdict.REJECTED, Verdict.FAILED), record
            assert reporter.outcome(record).error
            assert reporter.verdict(follower) in (Verdict.UNSENT, Verdict.UNKNOWN)
            alone = RecordingReporter()
            await broker.publish_alone(record, alone)
            assert alone.verdict(record) in (Verdict.REJECTED, Verdict.FAILED), record
        confirmed = {r.id for r in batch if reporter.verdict(r) is Verdict.CONFIRMED}
        assert {a.id for a in await arrived()} == confirmed

    @needs("hold")
    @pytest.mark.promise("P1")
    async def test_a_hung_key_stops_no_other(
        self,
        broker: Broker,
        reporter: RecordingReporter,
        records: Build,
        arrived: Arrived,
        hold: Hold,
    ) -> None:
        batch = records(20, ["hung", "a", "b", "c"])
        stuck = [r for r in batch if r.key == "hung"]
        others = [r for r in batch if r.key != "hung"]
        held = hold(stuck[0])
        publishing = asyncio.create_task(broker.publish(batch, reporter))
        await reporter.heard(others)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await held.reached.wait()
        assert {r.id for r, _ in reporter.reports} == {r.id for r in others}
        held.release()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await publishing
        assert [reporter.verdict(r) for r in stuck] == [Verdict.CONFIRMED] * 5
        assert [a.id for a in await arrived() if a.key == "hung"] == [r.id for r in stuck]

    @needs("hold")
    async def test_a_cancelled_publish_ends_and_reports_nothing_more(
        self, broker: Broker, reporter: RecordingReporter, records: Build, hold: Hold
    ) -> None:
        (record,) = records(1, ["k"])
        held = hold(record)
        publishing = asyncio.create_task(broker.publish([record], reporter))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await held.reached.wait()
            publishing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await publishing
        held.release()
        (other,) = records(1, ["k2"])
        await broker.publish([other], reporter)
        assert [r.id for r, _ in reporter.reports] == [other.id]

    @needs("outage")
    @pytest.mark.req("S1.4", "S1.7", "S5.3")
    @pytest.mark.promise("P2")
    async def test_an_outage_is_told_as_one_and_ends_by_itself(
        self,
        broker: Broker,
        reporter: RecordingReporter,
        records: Build,
        arrived: Arrived,
        outage: Outage,
    ) -> None:
        go_away, come_back = outage
        before, during, after = records(1, ["a"]), records(3, ["a", "b"]), records(2, ["a"])
        await broker.publish(before, reporter)
        await _maybe(go_away())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await broker.publish(during, reporter)
        away = (Verdict.OUTAGE, Verdict.UNKNOWN, Verdict.UNSENT)
        assert all(reporter.verdict(r) in away for r in during)
        assert Verdict.OUTAGE in {reporter.verdict(r) for r in during}
        await _maybe(come_back())
        await broker.publish(after, reporter)
        assert [reporter.verdict(r) for r in after] == [Verdict.CONFIRMED] * 2
        seen = [a.id for a in await arrived()]
        assert [i for i in seen if i in {r.id for r in before + after}] == [
            r.id for r in before + after
        ]

    # -- alone (P3) ---------------------------------------------------------------------------
    @pytest.mark.promise("P3")
    async def test_one_alone_arrives_and_is_confirmed(
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        (record,) = records(1, ["suspect"])
        await broker.publish_alone(record, reporter)
        assert reporter.verdict(record) is Verdict.CONFIRMED
        assert [a.id for a in await arrived()] == [record.id]

    @needs("refuse")
    @pytest.mark.promise("P3")
    async def test_one_alone_that_does_not_go_says_why(
        self,
        broker: Broker,
        reporter: RecordingReporter,
        records: Build,
        arrived: Arrived,
        refuse: Refuse,
    ) -> None:
        (record,) = records(1, ["suspect"])
        record = refuse(record)
        await broker.publish_alone(record, reporter)
        assert reporter.verdict(record) not in (Verdict.CONFIRMED, Verdict.UNSENT)
        assert reporter.outcome(record).error
        assert await arrived() == []

    # -- starts (H1) --------------------------------------------------------------------------
    @needs("begin")
    @pytest.mark.promise("H1")
    async def test_a_start_is_told_for_each_record_that_starts(
        self, broker: Broker, reporter: RecordingReporter, records: Build
    ) -> None:
        batch = records(6, ["a", "b"])
        assert broker.capabilities.marks_start
        await broker.publish(batch, reporter)
        assert Counter(reporter.begun) == {r.id: 1 for r in batch}

    @needs("begin", "refuse")
    @pytest.mark.promise("H1")
    async def test_what_never_started_is_not_told_as_started(
        self, broker: Broker, reporter: RecordingReporter, records: Build, refuse: Refuse
    ) -> None:
        batch = records(4, ["a"])
        batch[1] = refuse(batch[1])
        await broker.publish(batch, reporter)
        assert reporter.begun == [batch[0].id, batch[1].id]
        assert [reporter.verdict(r) for r in batch[2:]] == [Verdict.UNSENT] * 2

    @needs("begin")
    @pytest.mark.promise("H1", "G5")
    async def test_a_lost_lane_keeps_its_records_from_starting(
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        batch = records(6, ["lost", "kept"])
        lost = [r for r in batch if r.key == "lost"]
        reporter.lost = {lost[1].id}
        await broker.publish(batch, reporter)
        assert reporter.verdict(lost[0]) is Verdict.CONFIRMED
        assert [reporter.verdict(r) for r in lost[1:]] == [Verdict.UNSENT] * 2
        assert [a.id for a in await arrived() if a.key == "lost"] == [lost[0].id]

    # -- content ------------------------------------------------------------------------------
    async def test_bytes_arrive_as_they_are(
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        bodies = [
            b'{"a":1,  "b": [ ] }',
            b"",
            bytes(range(256)),
            b"\x00",
            b" \n",
            "ž🦊".encode(),
            b"\xff\xfe",
            b"x" * 100_000,
        ]
        batch = [
            records(1, ["k"], payload=body, content_type="application/octet-stream")[0]
            for body in bodies
        ]
        await broker.publish(batch, reporter)
        assert [a.payload for a in await arrived()] == bodies

    async def test_a_tombstone_arrives_without_a_body_and_neighbours_with_theirs(
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        [gone] = records(1, ["k"], payload=b"", options_json='{"tombstone":true}')
        batch = [*records(1, ["k"]), gone, *records(1, ["k"])]
        await broker.publish(batch, reporter)
        assert reporter.ids(Verdict.CONFIRMED) == [record.id for record in batch]
        assert [(a.id, a.payload) for a in await arrived()] == [(r.id, r.payload) for r in batch]

    async def test_hostile_keys_types_and_ids_arrive_as_they_are(
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        batch = [records(1, [text], type=text, id=f"{text[:60]}")[0] for text in HOSTILE]
        await broker.publish(batch, reporter)
        assert [reporter.verdict(r) for r in batch] == [Verdict.CONFIRMED] * len(batch)
        seen = {a.id: a for a in await arrived()}
        assert {i: (a.key, a.type) for i, a in seen.items()} == {
            text[:60]: (text, text) for text in HOSTILE
        }

    @needs("any_topic")
    async def test_hostile_topics_arrive_as_they_are(
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        batch = [records(1, [f"k{n}"], topic=text)[0] for n, text in enumerate(HOSTILE)]
        await broker.publish(batch, reporter)
        assert sorted(a.topic for a in await arrived()) == sorted(HOSTILE)

    @needs("max_bytes")
    @pytest.mark.promise("P2")
    async def test_what_is_too_large_is_rejected_and_its_neighbours_are_not(
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        limit = broker.capabilities.max_bytes or 0
        just, over, neighbour = (
            records(1, [key], payload=b"x" * size)[0]
            for key, size in (("just", limit), ("over", limit + 1), ("other", 1))
        )
        await broker.publish([just, over, neighbour], reporter)
        assert reporter.verdict(just) is Verdict.CONFIRMED
        assert reporter.verdict(over) is Verdict.REJECTED
        assert reporter.verdict(neighbour) is Verdict.CONFIRMED
        assert {a.id for a in await arrived()} == {just.id, neighbour.id}

    # -- life (S4.4) --------------------------------------------------------------------------
    @pytest.mark.req("S4.4", "S4.9")
    async def test_health_of_one_that_is_there(self, broker: Broker) -> None:
        await broker.health()

    @needs("outage")
    @pytest.mark.req("S4.4", "S4.9")
    async def test_health_of_one_that_is_away_says_so(self, broker: Broker, outage: Outage) -> None:
        go_away, come_back = outage
        await _maybe(go_away())
        with pytest.raises(OSError, match=r"\w"):  # any other error is the broker's own
            await broker.health()
        await _maybe(come_back())
        await broker.health()

    @pytest.mark.req("S4.4")
    async def test_close_twice_and_open_again(
        self, broker: Broker, reporter: RecordingReporter, records: Build, arrived: Arrived
    ) -> None:
        await broker.close()
        await broker.close()
        await broker.open()
        (record,) = records(1, ["k"])
        await broker.publish([record], reporter)
        assert reporter.verdict(record) is Verdict.CONFIRMED
        assert [a.id for a in await arrived()] == [record.id]


async def _maybe(result: Any) -> None:
    if asyncio.iscoroutine(result):
        await result
