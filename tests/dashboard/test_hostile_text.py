"""Keys, types, errors and names are hostile input: no page and no answer trusts them."""

from __future__ import annotations

import html
import sqlite3
from contextlib import closing
from urllib.parse import quote

import pytest

from postroom import Event
from postroom.model.history import attempt
from postroom.settlement import DeadOutcome, FailedOutcome
from postroom.stores.sqlite import SqliteStore
from postroom.testing.store.tools import FAR, Hand
from tests.dashboard.place import add, client, csrf_of, dashboard, sign_in

CANARY = "<script>alert(1)</script>"
BIDI = "\u202e"
TEXT = f"{CANARY}{BIDI}'\"&/../%2e"


@pytest.fixture
async def hostile(path):
    """A store in which every text that a stranger writes is hostile."""
    store = SqliteStore(f"sqlite:///{path}")
    await store.migrate()
    await store.open()
    for n in range(3):
        add(
            path,
            Event(
                f"type{TEXT}", {f"field{TEXT}": TEXT}, id=f"id{n}{TEXT}", key=f"key{TEXT}",
                stream=f"stream{TEXT}", topic=f"topic{TEXT}", headers={"x-header": CANARY},
                correlation_id=f"story{TEXT}", aggregate_type=f"aggregate{TEXT}",
                aggregate_id=f"aggregate-id{TEXT}", causation_id=f"cause{TEXT}",
            ),
        )  # fmt: skip
    hand = await Hand(store, owner=f"owner{CANARY}", stream=f"stream{TEXT}").take()
    rows = sorted(await hand.read(), key=lambda row: row.seq)
    error = f"error{TEXT}\x1b[31m"
    entry = attempt(f"relay{CANARY}", "rejected", 1, error, f"Traceback{TEXT}\n  line")
    await hand.settle(dead=[DeadOutcome(rows[0], 1, error, entry)])
    await hand.settle(failed=[FailedOutcome(rows[1], 1, FAR, error)])
    await store.set_control(
        "topic", f"topic{CANARY}", pause=True, reason=f"reason{TEXT}", by=f"by{TEXT}"
    )
    await store.set_control(
        "stream", f"stream{TEXT}", pause=True, reason=f"reason{TEXT}", by=f"by{TEXT}"
    )
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(
            "INSERT INTO postroom_inbox (consumer, id, type, state, received_at, processed_at) VALUES (?, ?, ?, 'done', 1, 1)",
            (f"c{CANARY}", f"id0{TEXT}", TEXT),
        )
        conn.commit()
    yield store
    await store.close()


async def test_no_page_shows_hostile_text_unescaped(hostile):
    app = dashboard({"shop": hostile})
    async with client(app, "admin") as one:
        groups = (await one.get("/api/v1/stores/shop/groups")).json()["groups"]
        event, key, stream = quote(f"id0{TEXT}"), quote(f"key{TEXT}"), quote(f"stream{TEXT}")
        seen = ""
        for where in (
            "", "?live=1", f"event?id={event}", f"event/payload?id={event}", f"key?key={key}",
            f"stream?name={stream}", f"group?id={groups[0]['group']}", "events?state=dead",
            f"events?type={quote('type' + TEXT)}&error={quote(TEXT)}", f"story?id={event}",
            "audit", "doctor", "operations", f"consumer?name={quote('c' + CANARY)}",
            f"act/replay?ids={event}", f"act/edit?ids={event}", f"act/replay?group={groups[0]['group']}",
            f"act/bury?ids={quote('id1' + TEXT)}", f"act/pause?kind=stream&name={stream}",
            f"act/limit?kind=topic&name={quote('topic' + CANARY)}&per_second=1",
        ):  # fmt: skip
            answer = await one.get(f"/s/shop/{where}")
            assert answer.status_code == 200, (where, answer.text)
            assert CANARY not in answer.text, where
            shown = answer.text
            for value in ("value", "href", "hx-get", "content", "action", "textarea"):
                shown = "".join(
                    part.partition('"')[2] if number else part
                    for number, part in enumerate(shown.split(f' {value}="'))
                )
            if not where.startswith(("act/edit", "act/")):  # the fields of a form have the text
                assert BIDI not in shown.partition("<textarea")[0], where
            assert "\x1b" not in answer.text
            seen += answer.text
    for name in (
        "type",
        "id0",
        "key",
        "stream",
        "topic",
        "error",
        "story",
        "by",
        "reason",
        "owner",
    ):
        assert html.escape(f"{name}{CANARY}") in seen, f"{name} was never shown"


async def test_pages_of_errors_escape_too(app):
    async with client(app, "admin") as one:
        for where in (
            f"event?id={quote(TEXT)}", f"key?key={quote(TEXT)}", f"group?id={quote(TEXT)}",
            f"stream?name={quote(TEXT)}", f"story?id={quote(TEXT)}", f"?range={quote(TEXT)}",
            f"events?state={quote(TEXT)}", f"act/replay?ids={quote(TEXT)}",
        ):  # fmt: skip
            answer = await one.get(f"/s/shop/{where}")
            assert answer.status_code in (400, 404), where
            assert CANARY not in answer.text, where
        assert CANARY not in (await one.get(f"/login?next={quote(TEXT)}&token={quote(TEXT)}")).text


async def test_an_action_on_a_hostile_name(hostile):
    app = dashboard({"shop": hostile})
    browser = await sign_in(app, "operator")
    page = await browser.get(f"/s/shop/act/replay?ids={quote('id0' + TEXT)}")
    fields = {"csrf": csrf_of(page), "ids": f"id0{TEXT}", "reason": TEXT, "action_id": "abcdefgh"}
    done = await browser.post("/s/shop/act/replay", data=fields, headers={"hx-request": "true"})
    assert "Replayed 1 event" in done.text
    assert (await hostile.get(f"id0{TEXT}")).state == "pending"
    assert CANARY not in (await browser.get("/s/shop/audit")).text
    await browser.aclose()


async def test_the_longest_names(store, path):
    name, key = "x" * 100, "k" * 255
    add(path, Event("t" * 255, {}, id=name, key=key))
    app = dashboard({"shop": store})
    async with client(app, "viewer") as one:
        for where in (f"event?id={name}", f"key?key={key}", ""):
            assert (await one.get(f"/s/shop/{where}")).status_code == 200


async def test_payloads_and_header_values_are_for_those_with_the_right(app):
    for role, sees in (("viewer", False), ("operator", False), ("reader", True), ("admin", True)):
        async with client(app, role) as one:
            text = ""
            for where in (
                "/s/shop/",
                "/s/shop/event?id=e-1",
                "/s/shop/events",
                "/s/shop/key?key=k1",
            ):
                text += (await one.get(where)).text
            for where in ("event?id=e-1", "events", "key?key=k1", "overview", "story?id=e-1"):
                text += (await one.get(f"/api/v1/stores/shop/{where}")).text
        assert "4111" not in text  # payloads are behind a click
        assert ("north" in text) is sees
