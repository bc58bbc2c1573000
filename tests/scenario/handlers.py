"""Handlers in this process as the destination: effects once, attempts counted before they begin."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from postroom.engine.handlers import dispatch
from postroom.engine.handlers.handlers import Handlers
from postroom.errors import Reject, Retry
from postroom.event import Event
from postroom.observer import Alarm
from postroom.retry import Constant, RetryPolicy
from tests.scenario.place import Reach, Stop, until

NEVER = RetryPolicy(backoff=Constant(3_600.0))


class HandlerScenes:
    @pytest.fixture
    def handlers(self):
        return Handlers()

    # -- success ------------------------------------------------------------------------------
    @pytest.mark.req("S2.5", "S2.4", "S3.2")
    async def test_handlers_run_in_the_order_of_their_key_and_the_events_are_done(
        self, place, handlers
    ):
        @handlers.on("paid")
        async def charge(event, tx):
            await place.effect(tx, event.id)

        async with place.relay(handlers):
            await place.write(*(Event("paid", id=f"e{n}", key="k") for n in range(10)))
            await until(place.all_done)
        assert await place.effects() == [f"e{n}" for n in range(10)]
        assert (await place.record("e0")).attempts == 1

    @pytest.mark.req("S2.3")
    @pytest.mark.promise("H1")
    async def test_the_attempt_is_counted_before_the_handler_begins(self, place, handlers):
        seen = {}

        @handlers.on("paid")
        async def charge(event, tx):
            record = await place.record(event.id)
            seen[event.id] = (record.state, record.attempts)
            if event.id == "e1":
                follower = await place.record("e2")
                seen["while e1 runs"] = (follower.state, follower.attempts)

        async with place.relay(handlers):
            await place.write(Event("paid", id="e1", key="k"), Event("paid", id="e2", key="k"))
            await until(place.all_done)
        assert seen == {
            "e1": ("processing", 1),
            "while e1 runs": ("pending", 0),  # only what starts is charged
            "e2": ("processing", 1),
        }

    @pytest.mark.req("S5.7")
    @pytest.mark.promise("G1", "G6")
    async def test_events_added_by_a_handler_share_its_commit(self, place, handlers):
        tries, arrived = [], []

        @handlers.on("order.paid")
        async def send(event, tx):
            tries.append(event.id)
            receipt = Event("receipt", id=f"receipt-{len(tries)}", key=event.key)
            await place.outbox.add(tx, receipt)
            if len(tries) == 1:
                raise ValueError("after the add: nothing of it may be seen")

        @handlers.on("receipt")
        async def print_it(event, tx):
            arrived.append(event.id)

        async with place.relay(handlers):
            await place.write(Event("order.paid", id="o1", key="order-1"))
            await until(lambda: arrived)
            await until(place.all_done)
        assert arrived == ["receipt-2"]
        assert await place.states() == {"o1": "done", "receipt-2": "done"}

    # -- what a handler may say ---------------------------------------------------------------
    @pytest.mark.req("S2.4")
    async def test_a_handler_that_raises_has_failed_and_is_tried_again(self, place, handlers):
        tries = []

        @handlers.on("paid")
        async def charge(event, tx):
            await place.effect(tx, event.id)
            tries.append(event.attempts)
            if len(tries) < 3:
                raise ValueError("card declined")

        async with place.relay(handlers):
            await place.write(Event("paid", id="e1", key="k"))
            await until(place.all_done)
        assert await place.effects() == ["e1"]
        record = await place.record("e1")
        assert record.attempts == 3

    @pytest.mark.req("S2.4")
    @pytest.mark.parametrize("after", [0.0, 0.01, timedelta(milliseconds=20)])
    async def test_retry_says_when(self, place, handlers, after):
        """The backoff of this relay would be an hour."""
        tries = []

        @handlers.on("paid")
        async def charge(event, tx):
            tries.append(event.id)
            if len(tries) < 3:
                raise Retry("the bank is busy", after=after)

        async with place.relay(handlers, retry=NEVER):
            await place.write(Event("paid", id="e1", key="k"))
            await until(place.all_done)
        assert len(tries) == 3

    @pytest.mark.req("S2.4")
    async def test_reject_makes_a_dead_letter_at_once_and_the_key_goes_on(self, place, handlers):
        @handlers.on("paid")
        async def charge(event, tx):
            await place.effect(tx, event.id)
            if event.id == "bad":
                raise Reject("no such customer")

        async with place.relay(handlers, retry=NEVER) as relay:
            await place.write(Event("paid", id="bad", key="k"), Event("paid", id="next", key="k"))
            await until(lambda: relay.counts.done == 1)
        dead = await place.record("bad")
        assert (dead.state, dead.attempts, dead.last_error) == ("dead", 1, "no such customer")
        assert await place.effects() == ["next"]

    @pytest.mark.req("S2.4", "S4.3")
    @pytest.mark.promise("G7")
    async def test_a_poison_is_dead_after_five_attempts(self, place, handlers):
        @handlers.on("paid")
        async def charge(event, tx):
            if event.id == "bad":
                raise ValueError("boom")

        async with place.relay(handlers) as relay:
            await place.write(Event("paid", id="bad", key="k"), Event("paid", id="next", key="k"))
            await until(lambda: relay.counts.done == 1)
        dead = await place.record("bad")
        assert (dead.state, dead.attempts) == ("dead", 5)
        assert dead.last_error == "ValueError: boom"

    @pytest.mark.promise("H2", "G6")
    async def test_of_several_handlers_only_the_one_that_failed_runs_again(self, place, handlers):
        tries = []

        @handlers.on("paid")
        async def book(event, tx):
            await place.effect(tx, "book")

        @handlers.on("paid")
        async def mail(event, tx):
            tries.append(event.id)
            if len(tries) < 3:
                raise ValueError("no mail server")
            await place.effect(tx, "mail")

        async with place.relay(handlers):
            await place.write(Event("paid", id="e1", key="k"))
            await until(place.all_done)
        assert sorted(await place.effects()) == ["book", "mail"]
        assert len(tries) == 3

    async def test_a_handler_has_a_time_limit_and_its_effects_are_undone(self, place):
        handlers, tries = Handlers(time_limit_seconds=1.0), []

        @handlers.on("paid")
        async def charge(event, tx):
            await place.effect(tx, event.id)
            tries.append(event.id)
            if len(tries) == 1:
                await asyncio.Event().wait()

        async with place.relay(handlers):
            await place.write(Event("paid", id="e1", key="k"))
            await until(place.all_done)
        assert await place.effects() == ["e1"]
        assert (await place.record("e1")).attempts == 2

    @pytest.mark.promise("P2")
    async def test_without_a_handler_events_wait_and_lose_no_attempt(self, place, handlers, notes):
        relay = place.relay(handlers, misconfigured_seconds=0.02, observers=[notes])
        async with relay:
            await place.write(Event("paid", id="e1", key="k"))
            await until(lambda: len(notes.of(Alarm)) >= 6)
            record = await place.record("e1")
            assert (record.state, record.attempts) == ("failed", 0)
            assert "no handler for type 'paid'" in record.last_error

            @handlers.on("paid")
            async def charge(event, tx):
                await place.effect(tx, event.id)

            await until(place.all_done)
        assert await place.effects() == ["e1"]
        assert (await place.record("e1")).attempts == 1

    # -- several events in one transaction ----------------------------------------------------
    @pytest.fixture
    def in_batches(self):
        return Handlers(batch=10, concurrency=1)

    @pytest.fixture
    def shared(self, monkeypatch):
        """How many events were begun together, each time."""
        sizes, run_together = [], dispatch.run_together

        async def watched(jobs, *args):
            sizes.append(len(jobs))
            return await run_together(jobs, *args)

        monkeypatch.setattr(dispatch, "run_together", watched)
        return sizes

    @pytest.mark.promise("G4", "G6", "G7")
    async def test_poison_in_a_shared_transaction_costs_its_neighbours_nothing(
        self, place, in_batches, shared
    ):
        @in_batches.on("paid")
        async def charge(event, tx):
            await place.effect(tx, event.id)
            if event.id == "e3":
                raise ValueError("boom")

        await place.write(*(Event("paid", id=f"e{n}", key=f"k{n % 6}") for n in range(12)))
        async with place.relay(in_batches, groups=1) as relay:
            await until(lambda: relay.counts.done == 11)
        assert shared[0] == 6
        records = {n: await place.record(f"e{n}") for n in range(12)}
        assert (records[3].state, records[3].attempts) == ("dead", 5)
        assert {r.attempts for n, r in records.items() if n != 3} == {1}
        effects = await place.effects()
        assert sorted(effects) == sorted(f"e{n}" for n in range(12) if n != 3)
        assert all(effects.index(f"e{n}") < effects.index(f"e{n + 6}") for n in (0, 1, 2, 4, 5))

    @pytest.mark.req("S3.5")
    @pytest.mark.promise("G6", "H1", "R2")
    async def test_killed_in_a_shared_transaction_nothing_of_it_is_there(
        self, place, in_batches, shared
    ):
        inside, runs = asyncio.Event(), []

        @in_batches.on("paid")
        async def charge(event, tx):
            await place.effect(tx, event.id)
            runs.append(event.id)
            if len(runs) == 3:
                inside.set()
                await asyncio.Event().wait()

        await place.write(*(Event("paid", id=f"e{n}", key=f"k{n}") for n in range(5)))
        doomed = place.relay(in_batches, groups=1)
        await doomed.start()
        await asyncio.wait_for(inside.wait(), 5)
        await place.die(doomed)
        assert await place.effects() == []
        assert set((await place.states()).values()) == {"processing"}
        async with place.relay(in_batches, groups=1):
            await until(place.all_done)
        assert sorted(await place.effects()) == [f"e{n}" for n in range(5)]
        assert shared == [5]  # after that each of them is tried alone
        assert {(await place.record(f"e{n}")).attempts for n in range(5)} == {2}

    @pytest.mark.req("S3.5")
    @pytest.mark.promise("G6", "H2")
    async def test_killed_between_a_shared_commit_and_its_settle_effects_happen_once(
        self, place, in_batches, shared
    ):
        runs = []

        @in_batches.on("paid")
        async def charge(event, tx):
            runs.append(event.id)
            await place.effect(tx, event.id)

        await place.write(*(Event("paid", id=f"e{n}", key=f"k{n}") for n in range(5)))
        reach, point = Reach(place.another()), Stop(lambda settlement: settlement.done)
        reach.before["settle"] = point
        doomed = place.relay(in_batches, groups=1, store=reach)
        await doomed.start()
        await asyncio.wait_for(point.reached.wait(), 5)
        await place.die(doomed)
        assert sorted(await place.effects()) == [f"e{n}" for n in range(5)]
        async with place.relay(in_batches, groups=1):
            await until(place.all_done)
        assert shared == [5]
        assert sorted(runs) == [f"e{n}" for n in range(5)]
        assert sorted(await place.effects()) == [f"e{n}" for n in range(5)]

    # -- a relay that dies (S3.5, G6) ---------------------------------------------------------
    @pytest.mark.req("S3.5", "S2.5")
    @pytest.mark.promise("G6", "H2", "R2")
    async def test_killed_between_commit_and_settle_the_effect_happens_once(self, place, handlers):
        runs = []

        @handlers.on("paid")
        async def charge(event, tx):
            runs.append(event.id)
            await place.effect(tx, event.id)

        reach, point = Reach(place.another()), Stop(lambda settlement: settlement.done)
        reach.before["settle"] = point
        doomed = place.relay(handlers, store=reach)
        await doomed.start()
        await place.write(Event("paid", id="e1", key="k"), Event("paid", id="e2", key="k"))
        await asyncio.wait_for(point.reached.wait(), 5)
        await place.die(doomed)
        assert (await place.states())["e1"] == "processing"
        async with place.relay(handlers):
            await until(place.all_done)
        assert runs[:1] == ["e1"]
        assert sorted(runs) == ["e1", "e2"]
        assert await place.effects() == ["e1", "e2"]
        assert (await place.record("e1")).attempts == 2

    @pytest.mark.req("S3.5", "S2.3")
    @pytest.mark.promise("H1", "R2")
    async def test_killed_in_the_middle_of_a_handler_the_event_is_handled_again(
        self, place, handlers
    ):
        inside, tries = asyncio.Event(), []

        @handlers.on("paid")
        async def charge(event, tx):
            await place.effect(tx, event.id)
            tries.append(event.id)
            if len(tries) == 1:
                inside.set()
                await asyncio.Event().wait()

        doomed = place.relay(handlers)
        await doomed.start()
        await place.write(Event("paid", id="e1", key="k"))
        await asyncio.wait_for(inside.wait(), 5)
        await place.die(doomed)
        assert await place.effects() == []
        async with place.relay(handlers):
            await until(place.all_done)
        assert await place.effects() == ["e1"]
        assert (await place.record("e1")).attempts == 2

    @pytest.mark.promise("H1", "G7")
    async def test_one_that_was_begun_too_often_and_never_finished_is_buried_unrun(
        self, place, handlers
    ):
        """Whatever it does to the process that runs it, it does it five times at most."""
        inside, runs = asyncio.Event(), []

        @handlers.on("paid")
        async def charge(event, tx):
            runs.append(event.id)
            if event.id == "killer":
                inside.set()
                await asyncio.Event().wait()

        await place.write(Event("paid", id="killer", key="k"), Event("paid", id="next", key="k"))
        for _ in range(5):
            inside.clear()
            doomed = place.relay(handlers)
            await doomed.start()
            await asyncio.wait_for(inside.wait(), 5)
            await place.die(doomed)
        async with place.relay(handlers) as relay:
            await until(lambda: relay.counts.done == 1)
        assert runs == ["killer"] * 5 + ["next"]
        dead = await place.record("killer")
        assert (dead.state, dead.attempts) == ("dead", 5)
        assert "started 5 times without finishing" in dead.last_error
