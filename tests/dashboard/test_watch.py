"""Samples are taken on demand, shared by all viewers, and cost a bounded number of statements."""

from __future__ import annotations

import asyncio

import pytest

from postroom.dashboard import charts
from postroom.dashboard.sample import RelayNow, StreamNow
from postroom.dashboard.watch import Mark, Point, Shared, changes
from postroom.errors import StoreError
from postroom.stores.sqlite.thread import Database
from tests.dashboard.place import add, client, dashboard, events


class Counted:
    """Counts the statements of a store that runs on SQLite."""

    def __init__(self, monkeypatch):
        self.number = 0
        run, rows = Database.run, Database.rows

        def counted(method):
            def call(db, *args, **more):
                self.number += 1
                return method(db, *args, **more)

            return call

        monkeypatch.setattr(Database, "run", counted(run))
        monkeypatch.setattr(Database, "rows", counted(rows))

    async def of(self, work):
        before = self.number
        await work
        return self.number - before


async def test_viewers_share_a_sample_and_nothing_runs_between(store, monkeypatch):
    app = dashboard({"shop": store}, refresh_seconds=3_600.0)
    counted = Counted(monkeypatch)
    async with client(app, "viewer") as one:
        first = await counted.of(one.get("/s/shop/"))
        assert 10 < first < 80
        pages = [one.get("/s/shop/") for _ in range(20)]
        assert await counted.of(asyncio.gather(*pages)) == 0
        assert await counted.of(asyncio.sleep(0.05)) == 0


async def test_concurrent_viewers_cause_one_sample(store, monkeypatch):
    app = dashboard({"shop": store}, refresh_seconds=3_600.0)
    other = dashboard({"shop": store}, refresh_seconds=3_600.0)
    counted = Counted(monkeypatch)
    async with client(app, "viewer") as one, client(other, "viewer") as alone:
        once = await counted.of(alone.get("/s/shop/"))
        assert await counted.of(asyncio.gather(*(one.get("/s/shop/") for _ in range(10)))) == once


async def test_a_page_costs_the_same_however_many_events_there_are(store, path, monkeypatch):
    """Thousands of events more, waiting and dead: every page runs the statements of before."""
    app = dashboard({"shop": store})
    counted = Counted(monkeypatch)
    wheres = ("", "events?state=dead", "event?id=e-1", "key?key=k1", "stream?name=orders", "audit")
    async with client(app, "viewer") as one:
        before = [await counted.of(one.get(f"/s/shop/{where}")) for where in wheres]
        add(path, *events(3_000, prefix="more"))
        await store.bury([f"more-{n}" for n in range(1_000)], "x")
        app.watches[0].changed()
        after = [await counted.of(one.get(f"/s/shop/{where}")) for where in wheres]
    assert all(a <= b + 2 for a, b in zip(after, before, strict=True)), (before, after)
    assert max(after) < 100


async def test_a_value_is_read_again_only_when_it_is_old():
    read = 0

    async def count():
        nonlocal read
        read += 1
        return read

    kept = Shared(count, 3_600.0)
    assert [await kept.get(), await kept.get()] == [1, 1]
    kept.expire()
    assert await kept.get() == 2
    assert await kept.get(fresh=True) == 3


async def test_an_old_value_is_shown_while_the_store_does_not_answer():
    answers: list = [1, StoreError("away"), StoreError("away"), 2]

    async def read():
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    kept = Shared(read, 0.0)
    assert await kept.get() == 1
    for _ in range(2):
        kept.expire()
        assert (await kept.get(), kept.error) == (1, "StoreError: away")
    kept.expire()
    assert (await kept.get(), kept.error) == (2, None)


async def test_the_verdict_says_that_figures_are_old(app, store):
    async with client(app, "viewer") as one:
        await one.get("/s/shop/")

        async def broken(*args):
            raise StoreError("db.internal does not answer")

        store.controls = broken
        app.watches[0].samples.expire()
        page = await one.get("/s/shop/")
    assert page.status_code == 200
    assert "The store has not answered" in page.text
    assert "db.internal" not in page.text


async def test_a_store_that_never_answered(app, store):
    async def broken(*args):
        raise StoreError("db.internal does not answer")

    store.controls = broken
    async with client(app, "viewer") as one:
        for _ in range(2):
            page = await one.get("/s/shop/")
            assert page.status_code == 503
            assert "db.internal" not in page.text


async def test_figures_of_a_stream(ask):
    found = await ask("overview")
    orders = next(one for one in found["streams"] if one["name"] == "orders")
    assert orders["counts"]["dead"] == 2
    assert (orders["waiting"], orders["dead"], orders["blocked_keys"]) == (6, 2, 1)
    assert orders["health"] == "healthy"
    assert set(orders["lanes"]) == {0}
    assert orders["added_per_second"] > 0
    blocked = next(one for one in found["needs"] if one["kind"] == "blocked")
    assert (blocked["key"], blocked["id"], blocked["followers"]) == ("k3", "e-3", 3)
    dead = next(one for one in found["needs"] if one["kind"] == "dead")
    assert (dead["count"], dead["pattern"]) == (2, "no such customer <n>")
    kinds = [one["kind"] for one in found["needs"]]
    assert kinds.index("alarm") < kinds.index("blocked") < kinds.index("dead")
    assert found["verdict"]["text"].startswith("No relay serves mail: 3 events wait")


def now(**more):
    relays = more.pop("relays", (RelayNow("a", "one", "healthy", 64),))
    plain = StreamNow("s", None, {}, 0.0, 0, relays, (0,) * 64, (), (), None, None)
    return plain._replace(**more)


def test_changes_that_a_chart_marks():
    sick = now(relays=(RelayNow("a", "one", "unhealthy", 64),))
    assert changes(now(), sick) == ["outage"]
    assert changes(sick, now()) == ["recovered"]
    assert changes(now(), now(relays=(RelayNow("b", "two", "healthy", 64),))) == ["relays changed"]
    assert changes(now(), now()) == []


def test_a_chart_has_gaps_where_no_viewer_was():
    begin = charts.time.time() - 600
    points = [Point(begin + at, 1.0, 2.0, 0, 0.0, 0.1, 0.2) for at in (0, 5, 10, 400, 405)]
    drawn = charts.chart(points, [Mark(begin + 5, "<s>", "outage")], 900.0)
    assert drawn.count('class="line added"') == 2
    assert "outage: &lt;s&gt;" in drawn
    assert "no figures yet" in charts.chart([], [], 900.0)


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.03, 0.05), (1, 1), (3, 5), (99, 100), (101, 200), (7_000, 10_000)]
)
def test_the_top_of_an_axis_is_round(value, top):
    assert charts._ceiling(value) == pytest.approx(top)
