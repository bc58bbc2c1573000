"""The contract of audit: narrower queries, causes of dead letters, and the audit log."""

from __future__ import annotations

import pytest

from postroom.commands import AuditEntry
from postroom.errors import NotFoundError
from postroom.lookup import Details, Filter
from postroom.model.clock import host_microseconds
from postroom.record import State
from postroom.store import Store
from postroom.testing.store.tools import FAR, Add, Hand, event, names, until

_MINUTE = 60_000_000


class OversightContract:
    """Operators' queries, and the audit log of their commands."""

    @pytest.mark.req("S1.9")
    async def test_find_by_error_and_by_time(self, store: Store, add: Add) -> None:
        await add(*(event(name, name) for name in ("a", "b", "c", "d")))
        hand = await Hand(store).take()
        await store.bury(["a"], "100% of %s is_wrong")
        await store.bury(["b"], "timeout")
        await store.bury(["d"], r"no [key] in f(x)*, \d+")
        await hand.take()
        found = {
            part: names(await store.find(Filter(error=part)))
            for part in (
                "100% of",
                "%",
                "is_",
                "isx",
                "time",
                "TIME",
                "c",
                "(x)*, \\d",
                "t.me",
                "[",
            )
        }
        assert found == {
            "100% of": ["a"],
            "%": ["a"],
            "is_": ["a"],
            "isx": [],
            "time": ["b"],
            "TIME": [],
            "c": [],
            "(x)*, \\d": ["d"],
            "t.me": [],
            "[": ["d"],
        }
        assert names(await store.find(Filter(state=State.DEAD, error="o"))) == ["a", "b", "d"]
        now = host_microseconds()
        assert names(await store.find(Filter(from_us=now - _MINUTE))) == ["a", "b", "c", "d"]
        assert await store.find(Filter(from_us=now + _MINUTE)) == []
        assert await store.find(Filter(before_us=now - _MINUTE)) == []
        dead = Filter(state=State.DEAD, from_us=now - _MINUTE, before_us=now + _MINUTE)
        assert names(await store.find(dead)) == ["a", "b", "d"]
        first = await store.get("a")
        assert first is not None
        exact = Filter(from_us=first.created_us, before_us=first.created_us + 1_000)
        assert "a" in names(await store.find(exact))
        assert "a" not in names(await store.find(Filter(before_us=first.created_us)))
        assert "a" in names(await store.find(Filter(before_us=first.created_us + 1)))
        assert "a" not in names(await store.find(Filter(from_us=first.created_us + 1)))

    @pytest.mark.req("S2.7")
    async def test_the_lag_counts_from_when_an_event_was_due(self, store: Store, add: Add) -> None:
        await add(event("e", "k"))
        hand = await Hand(store).take()
        await hand.fail(await hand.only("e"), delay=0.3)
        await until(hand.stage)
        due = (await hand.only("e")).next_attempt_us
        lag = (await store.stats("main")).lag_seconds
        assert due is not None
        assert 0 <= lag * 1_000_000 <= host_microseconds() - due

    @pytest.mark.req("S2.7")
    @pytest.mark.parametrize("streams", [3, 30])  # a store may count many of them in another way
    async def test_the_lag_of_all_streams_is_that_of_the_oldest_event(
        self, store: Store, add: Add, streams: int
    ) -> None:
        await add(event("oldest", stream=f"s{streams // 2}"))

        async def lags() -> bool:
            return (await store.stats()).lag_seconds >= 0.02

        await until(lags)
        lag = (await store.stats()).lag_seconds
        await add(*(event(f"e{n}", stream=f"s{n}") for n in range(streams)))
        everything = await store.stats()
        assert everything.lag_seconds >= lag
        assert everything.counts["pending"] == streams + 1
        assert (await store.stats("s0")).counts["pending"] == 1

    @pytest.mark.req("S1.9", "S2.1")
    async def test_the_details_of_an_event(self, store: Store, add: Add) -> None:
        assert await store.details("nothing") is None
        await add(event("head", "k"), event("behind", "k"), event("started"))
        hand = await Hand(store).take()
        head = await hand.only("head")
        assert await store.details("head") == Details("ready", None, None, None, None, None)
        await hand.settle(starts=[await hand.only("started")])
        started = await store.details("started")
        assert started is not None
        assert started.lease_owner == hand.owner
        assert (started.lease_until_us or 0) > host_microseconds()
        await hand.settle(starts=[head])
        await hand.fail(head, delay=FAR)
        failed = await store.details("head")
        assert failed == Details("waiting", None, None, None, None, head.seq)
        behind = await store.details("behind")
        assert behind is not None
        assert behind.barrier == head.seq
        await hand.bury(await hand.only("started"))
        dead = await store.details("started")
        assert dead is not None
        assert dead.stage == "over"
        assert abs((dead.settled_us or 0) - host_microseconds()) < 10 * _MINUTE

    @pytest.mark.req("S1.9")
    async def test_causes_of_death_are_counted(self, store: Store, add: Add) -> None:
        assert await store.dead_causes() == []
        await add(*(event(str(n), str(n)) for n in range(4)), event("x", stream="other"))
        await store.bury(["0"], "timeout")
        await store.bury(["1", "2"], "no such host")
        await store.bury(["x"], "timeout")
        dead_causes = await store.dead_causes("main")
        assert {(c.type, c.error, c.how_many) for c in dead_causes} == {
            ("tested", "timeout", 1),
            ("tested", "no such host", 2),
        }
        assert all(c.first_us <= c.last_us <= host_microseconds() + _MINUTE for c in dead_causes)
        assert [(c.error, c.how_many) for c in await store.dead_causes("main", limit=1)] == [
            ("no such host", 2)
        ]
        assert {(c.error, c.how_many) for c in await store.dead_causes()} == {
            ("timeout", 2),
            ("no such host", 2),
        }
        await store.replay(["0", "1", "2", "x"])
        assert await store.dead_causes() == []

    @pytest.mark.promise("L7")
    async def test_operations_are_recorded_with_what_they_changed(
        self, store: Store, add: Add
    ) -> None:
        await add(*(event(name, name) for name in ("a", "b", "c")))
        await store.bury(["a"], "nobody asks")
        assert await store.audit_log(10) == []
        await store.bury(["b"], "broken", by="anna")
        await store.replay(["a", "b", "no such"], by="b'ert")
        await store.skip("c", "not needed", by="anna")
        await store.bury(["no such"], "nothing changes", by="anna")
        with pytest.raises(NotFoundError):
            await store.skip("no such", "nothing changes", by="anna")
        await store.record_audit(AuditEntry("carl", "prune", 7, "older than a day"))
        audit_log = await store.audit_log(10)
        assert [entry._replace(at_us=0) for entry in audit_log] == [
            AuditEntry("carl", "prune", 7, "older than a day"),
            AuditEntry("anna", "skip", 1, "c: not needed"),
            AuditEntry("b'ert", "replay", 2, "a, b"),
            AuditEntry("anna", "bury", 1, "b: broken"),
        ]
        assert all(abs(entry.at_us - host_microseconds()) < 10 * _MINUTE for entry in audit_log)
        assert await store.audit_log(2) == audit_log[:2]

    async def test_a_long_audit_entry_is_cut(self, store: Store, add: Add) -> None:
        ids = [f"{n:0100}" for n in range(50)]
        await add(*(event(name) for name in ids))
        assert await store.bury(ids, "x" * 3_000, by="y" * 500) == 50
        (entry,) = await store.audit_log(1)
        assert (entry.how_many, len(entry.who), len(entry.about)) == (50, 255, 2_000)
