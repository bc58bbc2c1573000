"""The contract of controls: pauses that every process sees, and waiting events made due."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from postroom.commands import AuditEntry
from postroom.errors import ConfigError
from postroom.lookup import Filter
from postroom.model.clock import host_microseconds
from postroom.record import State
from postroom.store import Store
from postroom.testing.store.tools import FAR, Add, Another, Hand, event, until

_MINUTE = 60_000_000


class ControlContract:
    """Pauses of streams, topics and consumers."""

    async def test_a_pause_is_seen_by_every_process_until_it_is_resumed(
        self, store: Store, another: Another
    ) -> None:
        other = await another()
        assert await other.controls() == []
        assert await store.set_control("stream", "main", pause=True, reason="deploy", by="anna")
        assert await store.set_control("topic", "main", pause=True, seconds=FAR, by="bert")
        stream, topic = await other.controls()
        assert stream[:3] == ("stream", "main", True)
        assert (stream.until_us, stream.reason, stream.who) == (None, "deploy", "anna")
        assert stream.max_per_second is stream.max_in_flight is None
        assert stream.paused_us == stream.changed_us
        assert abs(stream.changed_us - host_microseconds()) < 10 * _MINUTE
        assert topic[:3] == ("topic", "main", True)
        assert topic.until_us is not None
        assert topic.paused_us is not None
        assert abs(topic.until_us - topic.paused_us - int(FAR * 1_000_000)) < 2_000_000
        assert await other.set_control("stream", "main", pause=False, by="carl")
        assert [one.paused for one in await store.controls()] == [False, True]
        assert not await store.set_control("stream", "main", pause=False, by="anna")

    async def test_a_pause_ends_by_the_clock_of_the_store(self, store: Store) -> None:
        await store.set_control("consumer", "mail", pause=True, seconds=0.3, by="anna")
        assert [one.paused for one in await store.controls()] == [True]

        async def is_over() -> bool:
            (one,) = await store.controls()
            return not one.paused

        await until(is_over)

    async def test_a_second_pause_replaces_the_first(self, store: Store) -> None:
        await store.set_control("stream", "main", pause=True, seconds=FAR, reason="one", by="anna")
        await store.set_control("stream", "main", pause=True, reason="two", by="bert")
        (one,) = await store.controls()
        assert (one.paused, one.until_us, one.reason, one.who) == (True, None, "two", "bert")

    async def test_pauses_of_many_operators_at_once_are_all_kept(
        self, store: Store, another: Another
    ) -> None:
        other = await another()
        await asyncio.gather(
            *(
                place.set_control("topic", name, pause=True, by="anna")
                for name in ("a", "b", "c")
                for place in (store, other)
            )
        )
        assert [(one.name, one.paused) for one in await store.controls()] == [
            ("a", True),
            ("b", True),
            ("c", True),
        ]

    async def test_pauses_are_audited(self, store: Store) -> None:
        await store.set_control("stream", "main", pause=True, seconds=600, reason="why", by="anna")
        await store.set_control("stream", "main", pause=False, by="bert")
        await store.set_control("stream", "main", pause=False, by="carl")  # nothing to resume
        assert [entry._replace(at_us=0) for entry in await store.audit_log(10)] == [
            AuditEntry("bert", "resume", 1, "stream main"),
            AuditEntry("anna", "pause", 1, "stream main for 600 s: why"),
        ]

    async def test_hostile_names_and_reasons(self, store: Store) -> None:
        name, reason = "é'; DROP TABLE x; -- $where", "$$NOW 'quoted' \\ \x00 end" + "x" * 9_000
        await store.set_control("topic", name, pause=True, reason=reason, by="$who" + "w" * 900)
        (one,) = await store.controls()
        assert (one.name, one.paused, one.who[:4]) == (name, True, "$who")
        assert one.reason.startswith("$$NOW 'quoted' \\")
        for bad in ("", "x" * 256, "a\nb"):
            with pytest.raises(ConfigError):
                await store.set_control("topic", bad, pause=True, by="anna")
        with pytest.raises(ConfigError):
            await store.set_control("lane", "7", pause=True, by="anna")
        assert len(await store.controls()) == 1


class LimitContract:
    """Limits of streams and topics."""

    async def test_limits_are_seen_by_every_process_and_replaced(
        self, store: Store, another: Another
    ) -> None:
        other = await another()
        assert await store.set_limits("stream", "main", per_second=200, in_flight=50, by="anna")
        assert await store.set_limits("topic", "main", per_second=0.5, in_flight=None, by="anna")
        stream, topic = await other.controls()
        assert (stream.kind, stream.name, stream.paused, stream.until_us) == (
            "stream", "main", False, None,
        )  # fmt: skip
        assert (stream.max_per_second, stream.max_in_flight) == (200.0, 50)
        assert (topic.max_per_second, topic.max_in_flight) == (0.5, None)
        assert abs(stream.changed_us - host_microseconds()) < 10 * _MINUTE
        assert await other.set_limits("stream", "main", per_second=None, in_flight=7, by="bert")
        stream, topic = await store.controls()
        assert (stream.max_per_second, stream.max_in_flight) == (None, 7)
        assert await store.set_limits("stream", "main", per_second=None, in_flight=None, by="carl")
        stream, topic = await store.controls()
        assert (stream.limited, topic.limited) == (False, True)

    async def test_a_limit_and_a_pause_leave_each_other_alone(self, store: Store) -> None:
        await store.set_control("topic", "t", pause=True, reason="deploy", by="anna")
        await store.set_limits("topic", "t", per_second=2.5, in_flight=3, by="bert")
        (one,) = await store.controls()
        assert (one.paused, one.reason, one.who) == (True, "deploy", "anna")
        assert await store.set_control("topic", "t", pause=False, by="carl")
        (one,) = await store.controls()
        assert (one.paused, one.max_per_second, one.max_in_flight) == (False, 2.5, 3)
        await store.set_control("topic", "t", pause=True, by="anna")
        assert await store.set_limits("topic", "t", per_second=None, in_flight=None, by="bert")
        (one,) = await store.controls()
        assert (one.paused, one.limited) == (True, False)

    async def test_limits_are_audited_and_checked(self, store: Store) -> None:
        name = "é'; DROP TABLE x; -- $where"
        assert not await store.set_limits("topic", name, per_second=None, in_flight=None, by="anna")
        await store.set_limits("topic", name, per_second=2, in_flight=5, by="$who")
        await store.set_limits("topic", name, per_second=None, in_flight=None, by="bert")
        assert not await store.set_limits("topic", name, per_second=None, in_flight=None, by="carl")
        assert [entry._replace(at_us=0) for entry in await store.audit_log(10)] == [
            AuditEntry("bert", "limit", 1, f"topic {name}: no limit"),
            AuditEntry("$who", "limit", 1, f"topic {name}: 2 per second, 5 in flight"),
        ]
        for kind, rate, most in (
            ("topic", 0.0, None), ("topic", None, 0), ("topic", float("nan"), 1),
            ("consumer", 1.0, 1), ("lane", 1.0, 1),
        ):  # fmt: skip
            with pytest.raises(ConfigError):
                await store.set_limits(kind, "t", per_second=rate, in_flight=most, by="anna")
        assert len(await store.controls()) == 1


class RetryNowContract:
    """Waiting events that an operator makes due."""

    async def test_a_waiting_event_becomes_due_and_keeps_its_attempts(
        self, store: Store, add: Add
    ) -> None:
        await add(event("head", "k"), event("follower", "k"), event("other", "o"))
        hand = await Hand(store).take()
        for name in ("head", "other"):
            await hand.fail(await hand.only(name), delay=FAR)
        await hand.settle(parked=await hand.read())
        assert await hand.stage() == 0
        assert await store.retry_now(["head", "unknown", "head"], by="anna") == 1
        assert await hand.stage() == 1
        (head,) = await hand.read()
        assert (head.id, head.attempts, head.state) == ("head", 1, State.FAILED)
        await hand.settle(done=[head])
        assert [r.id for r in await hand.read()] == ["follower"]
        (entry,) = await store.audit_log(10)
        assert entry[:4] == ("anna", "retry-now", 1, "head")

    async def test_only_events_that_wait_for_an_attempt_are_changed(
        self, store: Store, add: Add
    ) -> None:
        later = datetime.now(UTC) + timedelta(seconds=FAR)
        await add(
            event("ready"), event("dead"), event("later", available_at=later), event("held", "k")
        )
        await add(event("parked", "k"))
        hand = await Hand(store).take()
        await hand.bury(await hand.only("dead"))
        await hand.fail(await hand.only("held"), delay=FAR)
        await hand.settle(parked=[r for r in await hand.read() if r.id == "parked"])
        before = {r.id: r for r in await store.find(Filter())}
        names = ["ready", "dead", "later", "parked"]
        assert await store.retry_now(names, by="anna") == 0
        assert {r.id: r for r in await store.find(Filter())} == before
        assert await store.audit_log(10) == []
        assert await store.retry_now([]) == 0

    async def test_the_owner_of_the_lane_keeps_it(self, store: Store, add: Add) -> None:
        await add(event("head", "k"), event("in flight", "k2"))
        hand = await Hand(store).take()
        await hand.fail(await hand.only("head"), delay=FAR)
        flying = await hand.only("in flight")
        assert await store.retry_now(["head"]) == 1
        assert await hand.settle(done=[flying]) == set(hand.held)
        assert await hand.stage() == 1
