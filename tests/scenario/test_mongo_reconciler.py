"""Canonical write first, event second, and a reconciler for those who die in between (S2.6)."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pymongo
import pytest

from postroom import (
    ConfigError,
    DuplicateEventError,
    Event,
    Outbox,
    Relay,
    StoreRetryableError,
    StoreUnknownError,
    notifier,
)
from postroom.brokers.memory import MemoryBroker
from postroom.stores.mongo import FoundBy, HasResult, Marked, MongoStore, Recent, Reconciler
from postroom.transactions.mongo import without_transaction
from tests.contract.mongo_database import url_of
from tests.scenario.mongo_dying import die_at
from tests.scenario.place import QUICK, ids, until


def page_saved(page):
    return Event("page.saved", {"text": page["text"]}, id=event_id(page), key=str(page["_id"]))


def event_id(page):
    return f"{page['_id']}:{page['revision']}"


class Wiki:
    """Pages whose writer has no transactions."""

    def __init__(self, url, **options):
        self.url = url
        self.client = pymongo.AsyncMongoClient(url, **options)
        self.database = self.client.get_default_database()
        self.pages, self.rendered = self.database["pages"], self.database["rendered"]
        self.events = self.database["postroom_outbox"]

    async def save(self, name, revision=1, **fields):
        """The first write."""
        page = {"_id": name, "revision": revision, "text": f"text {revision}", **fields}
        await self.pages.replace_one({"_id": name}, page, upsert=True)
        return page

    async def add(self, page):
        """The second write."""
        await Outbox().add(without_transaction(self.database), page_saved(page))

    async def render(self, page):
        result = {"_id": event_id(page)}
        await self.rendered.replace_one(result, result, upsert=True)

    async def forget(self):
        """Done events are pruned; here all of them."""
        await self.events.delete_many({})

    async def event_ids(self):
        return sorted([event["_id"] async for event in self.events.find()])

    def reconciler(self, served=None, **options):
        made = Reconciler(self.url, "pages", page_saved, served or HasResult("rendered"), **options)
        self.open.append(made)
        return made

    async def run(self, served=None, **options):
        return await self.reconciler(served, **options).run_once()

    open: list[Reconciler]


@pytest.fixture(params=["mongo_standalone_url", "mongo_url"])
async def wiki(request):
    async for made in made_wiki(request.getfixturevalue(request.param)):
        yield made


@pytest.fixture
async def standalone(mongo_standalone_url):
    async for made in made_wiki(mongo_standalone_url):
        yield made


async def made_wiki(server):
    wiki = Wiki(url_of(server, f"wiki_{uuid.uuid4().hex[:12]}"))
    wiki.open = []
    await MongoStore(wiki.url).migrate()
    yield wiki
    for reconciler in wiki.open:
        await reconciler.close()
    await wiki.client.drop_database(wiki.database.name)
    await wiki.client.close()


# -- what it repairs ------------------------------------------------------------------------------
@pytest.mark.req("S2.6")
@pytest.mark.promise("G2")
async def test_a_lost_event_is_added_once_and_never_again(wiki):
    whole, lost, rendered = [await wiki.save(name) for name in ("whole", "lost", "rendered")]
    await wiki.add(whole)
    await wiki.render(rendered)  # its event is done and pruned
    kicked = []
    unsubscribe = notifier.subscribe("main", lambda: kicked.append("main"))
    report = await wiki.run()
    unsubscribe()
    assert kicked == ["main"]
    assert report.repaired == ["lost:1"]
    assert (report.looked, report.present, report.finished) == (3, 1, True)
    assert await wiki.event_ids() == ["lost:1", "whole:1"]
    assert (await wiki.run()).repaired == []
    with pytest.raises(DuplicateEventError):  # the writer was only slow: a duplicate is success
        await wiki.add(lost)
    for page in (whole, lost):
        await wiki.render(page)
    await wiki.forget()
    assert (await wiki.run()).repaired == []  # a year later
    await wiki.save("lost", 2)
    assert (await wiki.run()).repaired == ["lost:2"]


@pytest.mark.req("S2.6")
async def test_an_event_that_was_repaired_is_delivered_as_it_should_have_been(standalone):
    await standalone.save("a")
    await standalone.run(routes={"page.*": "pages"})
    broker = MemoryBroker()
    await Relay(standalone.url, broker, **QUICK).drain()
    (message,) = broker.messages
    record = message.record
    assert (record.id, record.type, record.key, record.topic) == ("a:1", "page.saved", "a", "pages")
    assert record.data == {"text": "text 1"}


@pytest.mark.req("S2.6")
@pytest.mark.promise("G3")
async def test_a_mark_on_the_document_says_that_it_is_served(standalone):
    wiki = standalone
    await wiki.save("lost")
    await wiki.save("marked", meta={"event": "marked:1"})
    await wiki.save("old mark", 2, meta={"event": "old mark:1"})
    await wiki.add(await wiki.save("no mark"))
    report = await wiki.run(Marked("meta.event"))
    assert sorted(report.repaired) == ["lost:1", "old mark:2"]
    await wiki.forget()
    assert (await wiki.run(Marked("meta.event"))).repaired == []
    marks = {page["_id"]: page["meta"]["event"] async for page in wiki.pages.find()}
    assert marks == {
        "lost": "lost:1", "marked": "marked:1", "old mark": "old mark:2", "no mark": "no mark:1",
    }  # fmt: skip


@pytest.mark.promise("G3")
async def test_a_document_that_is_marked_while_it_is_looked_at_is_left_alone(standalone):
    """Its writer saved, added and marked since the page was read, and the event is done and gone."""
    wiki = standalone
    page = await wiki.save("a")
    reconciler = wiki.reconciler(Marked("event"))
    make = reconciler._event
    client = pymongo.MongoClient(wiki.url)

    def marked_meanwhile(document):
        client.get_default_database()["pages"].update_one(
            {"_id": "a"}, {"$set": {"event": event_id(page)}}
        )
        return make(document)

    reconciler._event = marked_meanwhile
    assert (await reconciler.run_once()).repaired == []
    assert await wiki.event_ids() == []
    client.close()


@pytest.mark.promise("G3")
async def test_the_mark_of_a_newer_event_is_not_written_over(standalone):
    wiki = standalone
    page = await wiki.save("a")
    await wiki.add(page)
    reconciler = wiki.reconciler(Marked("event"))
    make, client = reconciler._event, pymongo.MongoClient(wiki.url)

    def saved_meanwhile(document):
        newer = {"$set": {"revision": 2, "event": "a:2"}}
        client.get_default_database()["pages"].update_one({"_id": "a"}, newer)
        return make(document)

    reconciler._event = saved_meanwhile
    await reconciler.run_once()
    assert (await wiki.pages.find_one({"_id": "a"}))["event"] == "a:2"
    client.close()


@pytest.mark.promise("G3")
async def test_results_are_asked_for_after_the_outbox(standalone):
    """The other way round an event that ends in between would look lost."""
    wiki = standalone
    await wiki.add(await wiki.save("in the outbox"))
    await wiki.save("lost")
    asked = []

    async def look(names):
        asked.extend(names)
        return []

    await wiki.run(FoundBy(look))
    assert asked == ["lost:1"]


@pytest.mark.req("S2.6")
async def test_a_result_may_be_found_by_any_function(standalone):
    wiki = standalone
    await wiki.save("a")
    await wiki.save("b")

    async def look(names):
        return [name for name in names if name.startswith("a")]

    assert (await wiki.run(FoundBy(look))).repaired == ["b:1"]


# -- a window -------------------------------------------------------------------------------------
@pytest.mark.req("S2.6")
async def test_a_window_sees_only_what_is_recent(wiki):
    now = datetime.now(UTC)
    await wiki.save("recent", saved_at=now - timedelta(minutes=5))
    await wiki.save("long ago", saved_at=now - timedelta(hours=5))
    await wiki.save("no date")
    hour = Recent("saved_at", timedelta(hours=1))
    report = await wiki.run(hour)
    assert (report.looked, report.repaired) == (1, ["recent:1"])


@pytest.mark.req("S2.6")
def test_a_window_must_be_shorter_than_done_events_are_kept():
    def made(seconds, **options):
        return Reconciler(
            "mongodb://h/d", "pages", page_saved, Recent("saved_at", seconds), **options
        )

    with pytest.raises(
        ConfigError, match="86400 s must be shorter than keep_done_seconds .86400 s"
    ):
        made(86_400)
    with pytest.raises(ConfigError, match="must be shorter"):
        made(10, keep_done_seconds=0)
    reconciler = made(3600, keep_done_seconds=7200)
    with pytest.raises(ConfigError, match="Shorten the window, or raise keep_done_seconds"):
        reconciler.check_retention(60)
    with pytest.raises(ConfigError, match="more than 0"):
        made(0)


async def test_who_has_just_written_is_given_time_for_the_second_write(standalone):
    wiki = standalone
    await wiki.save("now", saved_at=datetime.now(UTC))
    await wiki.save("then", saved_at=datetime.now(UTC) - timedelta(minutes=2))
    report = await wiki.run(changed_at="saved_at", grace_seconds=60)
    assert report.repaired == ["then:1"]


# -- the walk -------------------------------------------------------------------------------------
@pytest.mark.req("S2.6")
async def test_a_run_is_bounded_and_the_next_goes_on_from_there(standalone):
    wiki = standalone
    names = [*range(10), *(f"p{n}" for n in range(10)), {"a": 1}, b"bytes", datetime.now(UTC)]
    for name in names:
        await wiki.save(name)
    seen, shown = [], []
    for number in range(10):
        report = await wiki.reconciler(limit=4).run_once(lambda so_far: shown.append(so_far.looked))
        seen += report.repaired
        if report.finished:
            break
        assert report.looked == 4
    assert number == 5
    assert len(seen) == len(set(seen)) == 23
    assert shown == [4, 4, 4, 4, 4, 3]
    assert (await wiki.run(limit=100)).looked == 23


async def test_many_documents_of_one_instant_do_not_hold_the_walk(standalone):
    wiki = standalone
    same, later = datetime.now(UTC) - timedelta(minutes=9), datetime.now(UTC)
    for number in range(7):
        await wiki.save(f"same {number}", saved_at=same)
    await wiki.save("later", saved_at=later)
    window = Recent("saved_at", 3600)
    reports = [await wiki.run(window, limit=3) for _ in range(3)]
    assert sorted(sum((report.repaired for report in reports), [])) == [
        "later:1", *(f"same {number}:1" for number in range(7)),
    ]  # fmt: skip


@pytest.mark.promise("G7")
async def test_one_odd_document_does_not_stop_the_others(standalone):
    wiki = standalone
    await wiki.pages.insert_one({"_id": "a without a revision"})
    await wiki.save("b", text=float("nan"))
    await wiki.save("c")
    report = await wiki.run()
    assert report.repaired == ["c:1"]
    assert [name for name, _ in report.failed] == ["a without a revision", "b"]


async def test_an_id_that_is_not_derived_from_the_document_is_refused(standalone):
    await standalone.save("a")
    reconciler = Reconciler(
        standalone.url, "pages", lambda page: Event("page.saved"), HasResult("rendered")
    )
    with pytest.raises(ConfigError, match="derive the id from the document"):
        await reconciler.run_once()
    await reconciler.close()
    assert await standalone.event_ids() == []


async def test_a_document_may_need_no_event_and_a_query_chooses(standalone):
    wiki = standalone
    await wiki.save("draft", draft=True)
    await wiki.save("other", kind="other")
    await wiki.save("page")

    def unless_draft(page):
        return None if page.get("draft") else page_saved(page)

    reconciler = wiki.reconciler(query={"kind": {"$ne": "other"}})
    reconciler._event = unless_draft
    report = await reconciler.run_once()
    assert (report.looked, report.repaired) == (2, ["page:1"])


# -- by itself ------------------------------------------------------------------------------------
@pytest.mark.req("S2.6")
async def test_it_runs_by_itself_beside_a_relay(standalone):
    wiki, broker = standalone, MemoryBroker()
    reconciler = wiki.reconciler(every_seconds=0.02)
    async with reconciler, Relay(wiki.url, broker, **QUICK):
        await wiki.save("a")
        await until(lambda: ids(broker) == ["a:1"])
        assert reconciler.is_running
        await wiki.save("a", 2)
        await until(lambda: ids(broker) == ["a:1", "a:2"])
    assert not reconciler.is_running


loaded = Reconciler("mongodb://h/d", "pages", page_saved, HasResult("rendered"))


def test_it_is_loaded_by_its_import_path():
    assert Reconciler.load(f"{__name__}:loaded") is loaded
    for path, words in [
        ("loaded", "package.module:attribute"),
        ("no.such.module:x", "cannot be loaded"),
        (f"{__name__}:missing", "cannot be loaded"),
        (f"{__name__}:page_saved", "not a Reconciler"),
    ]:
        with pytest.raises(ConfigError, match=words):
            Reconciler.load(path)


# -- deaths ---------------------------------------------------------------------------------------
async def write(url, listener):
    """What a writer does that dies in the middle of it."""
    wiki = Wiki(url, event_listeners=[listener])
    listener.armed = True
    page = await wiki.save("a", (await wiki.pages.count_documents({"_id": "a"})) + 1)
    await wiki.add(page)
    await wiki.pages.update_one({"_id": "a"}, {"$set": {"event": event_id(page)}})
    await wiki.client.close()


async def reconcile(url, listener):
    store = MongoStore(url)
    store._address.options["event_listeners"] = [listener]
    reconciler = Reconciler(store, "pages", page_saved, Marked("event"), limit=1)
    await store.open()
    listener.armed = True
    await reconciler.run_once()
    await reconciler.close()


@pytest.mark.slow
@pytest.mark.req("S2.6")
@pytest.mark.promise("G2", "G3")
async def test_whoever_is_killed_at_any_step_the_event_is_there_once(standalone):
    wiki = standalone
    died = True
    for number in range(1, 30):
        await wiki.pages.delete_many({})
        await wiki.forget()
        died = await die_at(number, wiki.url, write)
        saved = await wiki.pages.count_documents({})
        await die_at(number, wiki.url, reconcile)
        await wiki.run(Marked("event"))
        assert await wiki.event_ids() == (["a:1"] if saved else [])
        await wiki.forget()  # a year later
        assert (await wiki.run(Marked("event"))).repaired == []
        if not died and number > 8:
            break
    assert number > 5


async def test_a_server_that_goes_away_ends_the_run_and_not_the_reconciler(standalone, caplog):
    wiki = standalone
    await wiki.save("a")
    reconciler = wiki.reconciler(every_seconds=0.01)
    run, answers = (
        reconciler.run_once,
        iter([StoreUnknownError("away"), StoreRetryableError("busy")]),
    )

    async def unsteady():
        if (error := next(answers, None)) is not None:
            raise error
        return await run()

    reconciler.run_once = unsteady

    async def repaired():
        return await wiki.event_ids() == ["a:1"]

    async with reconciler:
        await until(repaired)
        assert reconciler.is_running
    assert caplog.text.count("it retries") == 2
