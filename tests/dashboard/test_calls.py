"""Every call of the dashboard, for every role: the table of rights is written here by hand."""

from __future__ import annotations

import html

import pytest

from tests.dashboard.place import PEOPLE, client, csrf_of, dashboard, sign_in

VIEW = set(PEOPLE)
PAYLOADS = {"reader", "editor", "admin"}
OPERATE = {"operator", "editor", "admin"}
EDIT = {"editor", "admin"}
ADMIN = {"admin"}
VERBS = {
    "replay": OPERATE, "retry-now": OPERATE, "bury": OPERATE, "skip": OPERATE, "edit": EDIT,
    "purge": ADMIN, "pause": OPERATE, "resume": OPERATE, "limit": OPERATE,
    "operation-pause": OPERATE, "operation-resume": OPERATE, "operation-cancel": OPERATE,
}  # fmt: skip
PAGES = {
    "": VIEW, "stream": VIEW, "consumer": VIEW, "events": VIEW, "search": VIEW, "event": VIEW,
    "event/payload": PAYLOADS, "key": VIEW, "group": VIEW, "operations": VIEW, "operation": VIEW,
    "audit": VIEW, "doctor": VIEW, "story": VIEW, "done": VIEW,
}  # fmt: skip
ANSWERS = {
    "overview": VIEW, "stream": VIEW, "consumer": VIEW, "events": VIEW, "event": VIEW,
    "event/payload": PAYLOADS, "key": VIEW, "groups": VIEW, "group": VIEW, "operations": VIEW,
    "operation": VIEW, "audit": VIEW, "doctor": VIEW, "story": VIEW,
}  # fmt: skip
RIGHTS = {
    **{("GET", f"/s/{{store}}/{path}"): who for path, who in PAGES.items()},
    **{("GET", f"/api/v1/stores/{{store}}/{path}"): who for path, who in ANSWERS.items()},
    **{("GET", f"/s/{{store}}/act/{verb}"): who for verb, who in VERBS.items()},
    **{("POST", f"/s/{{store}}/act/{verb}"): who for verb, who in VERBS.items()},
    **{("POST", f"/api/v1/stores/{{store}}/actions/{verb}"): who for verb, who in VERBS.items()},
    ("POST", "/s/{store}/doctor"): OPERATE,
}


def test_the_table_has_every_call(app):
    assert {(call.method, call.path) for call in app.calls} == set(RIGHTS)


@pytest.mark.parametrize("role", PEOPLE)
async def test_a_call_is_answered_for_those_who_may_make_it(app, role):
    """Without values most calls answer 400 or 404: that is behind the check of the right."""
    async with client(app, role) as one:
        for (method, path), who in RIGHTS.items():
            where = path.replace("{store}", "shop")
            api = where.startswith("/api")
            body = {"json": {}} if api else {"data": {"csrf": "wrong"}}
            answer = await one.request(method, where, **(body if method == "POST" else {}))
            if role in who:
                assert answer.status_code in (200, 303, 400, 404), (method, path, answer.text)
            else:
                assert answer.status_code == 403, (method, path)
                assert "This needs the role" in answer.text


async def test_nothing_is_served_to_strangers(app):
    async with client(app) as one, client(app, "wrong") as other:
        for method, path in RIGHTS:
            where = path.replace("{store}", "shop")
            answer = await one.request(method, where)
            if method == "GET" and not where.startswith("/api"):
                assert answer.status_code == 303
                assert answer.headers["location"].startswith("/login?next=%2Fs%2Fshop%2F")
            else:
                assert answer.status_code == 401, (method, path)
        assert (await one.get("/api/v1")).status_code == 401
        assert (await one.get("/api/v1/openapi.json")).status_code == 401
        assert (await other.get("/api/v1")).status_code == 401


async def test_without_a_way_to_sign_in_nothing_is_served(store):
    app = dashboard({"shop": store}, tokens=[])
    async with client(app) as one:
        assert (await one.get("/s/shop/")).status_code == 401
        assert "no way to sign in" in (await one.get("/login")).text
    await app.close()


async def test_unknown_stores_pages_and_methods(app):
    async with client(app, "admin") as one:
        assert (await one.get("/s/other/")).status_code == 404
        assert (await one.get("/api/v1/stores/other/overview")).status_code == 404
        assert (await one.get("/nothing")).status_code == 404
        assert (await one.get("/api/v1/nothing")).json() == {"error": "There is no such page."}
        assert (await one.put("/s/shop/")).status_code == 405
        assert (await one.get("/static/../app.py")).status_code == 404


async def test_no_get_changes_anything(app, store, path):
    """Every page and answer, asked by an admin with good values: the audit log stays empty."""
    async with client(app, "admin") as one:
        for method, where in RIGHTS:
            if method == "GET":
                query = {"id": "e-1", "ids": "e-1", "key": "k3", "name": "orders", "kind": "stream"}
                await one.get(where.replace("{store}", "shop"), params=query)
    assert await store.audit_log(10) == []
    assert (await store.stats()).counts["dead"] == 2


async def test_pages_answer(app):
    async with client(app, "admin") as one:
        group = (await one.get("/api/v1/stores/shop/groups")).json()["groups"][0]["group"]
        for where, text in {
            "": "has waited", "stream?name=orders": "relay-1", "events?state=dead": "e-1",
            "event?id=e-1": "no such customer 17", "event/payload?id=e-1": "4111",
            "key?key=k3": "Blocked by", f"group?id={group}": "2 dead letters",
            "operations": "No operation yet", "audit": "No audit entry", "doctor": "dead letters",
            "story?id=e-1": "order.created", "act/replay?ids=e-1": "Replay the event",
            "act/edit?ids=e-1": "4111", "act/pause?kind=stream&name=orders": "Pause stream orders",
        }.items():  # fmt: skip
            answer = await one.get(f"/s/shop/{where}")
            assert answer.status_code == 200, (where, answer.text)
            assert text in answer.text, where


async def test_every_action_that_a_page_offers_can_be_planned(app, store):
    """Follow each link to a dry run, of every page that has one."""
    await store.set_control("topic", "invoices", pause=True, by="x")
    async with client(app, "admin") as one:
        group = (await one.get("/api/v1/stores/shop/groups")).json()["groups"][0]["group"]
        links = set()
        for where in ("", "stream?name=orders", "event?id=e-1", "event?id=e-3", "key?key=k3",
                      f"group?id={group}"):  # fmt: skip
            page = (await one.get(f"/s/shop/{where}")).text
            links |= {part.partition('"')[0] for part in page.split('hx-get="')[1:]}
        links = {html.unescape(link) for link in links if "/act/" in link and "?" in link}
        assert len(links) > 10
        for link in links:
            answer = await one.get(link)
            assert answer.status_code == 200, (link, answer.text)


@pytest.mark.parametrize(
    ("text", "leads_to"),
    [
        ("e-1", "event?id=e-1"), ("k3", "key?key=k3"), ("order.created", "events?type=order.created"),
        ("", "events"),
    ],
)  # fmt: skip
async def test_the_search_box_leads_to_what_it_names(app, text, leads_to):
    async with client(app, "viewer") as one:
        answer = await one.get("/s/shop/search", params={"q": text})
    assert answer.headers["location"] == f"/s/shop/{leads_to}"


async def test_a_form_of_a_session_needs_its_csrf_token(app, store):
    browser = await sign_in(app, "operator")
    page = await browser.get("/s/shop/act/pause?kind=stream&name=orders")
    form = {"kind": "stream", "name": "orders", "reason": "x", "action_id": "abcdefgh1"}
    for token in ("", "wrong", csrf_of(page)[:-1]):
        answer = await browser.post("/s/shop/act/pause", data={**form, "csrf": token})
        assert answer.status_code == 403
    assert await store.controls() == []
    answer = await browser.post("/s/shop/act/pause", data={**form, "csrf": csrf_of(page)})
    assert answer.status_code == 303
    assert [one.paused for one in await store.controls()] == [True]
    await browser.aclose()


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.test"}, {"origin": "null"}, {},
    ],
)  # fmt: skip
async def test_a_change_from_another_site_is_refused(app, store, headers):
    browser = await sign_in(app, "operator")
    page = await browser.get("/s/shop/act/pause?kind=stream&name=orders")
    del browser.headers["sec-fetch-site"]
    form = {"kind": "stream", "name": "orders", "reason": "x", "action_id": "abcdefgh1"}
    answer = await browser.post(
        "/s/shop/act/pause", data={**form, "csrf": csrf_of(page)}, headers=headers
    )
    assert answer.status_code == 403
    assert await store.controls() == []
    login = await client(app).post("/login", data={"token": "admin"}, headers=headers)
    assert login.status_code == 403
    await browser.aclose()


async def test_every_answer_has_the_security_headers(app):
    async with client(app, "admin") as one:
        for where in ("/s/shop/", "/login", "/nothing", "/api/v1", "/static/htmx.min.js"):
            headers = (await one.get(where)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "unsafe" not in policy
            assert headers["x-frame-options"] == "DENY"
            assert headers["x-content-type-options"] == "nosniff"
            stored = "public, max-age=86400" if "static" in where else "no-store"
            assert headers["cache-control"] == stored


async def test_no_page_has_inline_script_or_style(app):
    async with client(app, "admin") as one:
        for where in ("", "stream?name=orders", "event?id=e-1", "events", "act/edit?ids=e-1"):
            text = (await one.get(f"/s/shop/{where}")).text
            assert "style=" not in text
            assert "<style" not in text
            assert "onclick" not in text
            assert all(" src=" in part for part in text.split("<script")[1:])


async def test_bodies_and_queries_are_bounded(store):
    app = dashboard({"shop": store}, max_body_bytes=1_000)
    async with client(app, "admin") as one:
        answer = await one.post("/api/v1/stores/shop/actions/replay", json={"ids": ["x" * 2_000]})
        assert answer.status_code == 413
        answer = await one.get("/s/shop/events", params={"type": "x" * 4_001})
        assert answer.status_code == 400
    await app.close()


async def test_an_error_shows_no_internals(app, store, caplog):
    async def broken(*args):
        raise RuntimeError("password=hunter2 at db.internal")

    store.get = broken
    async with client(app, "admin") as one:
        page, answer = (
            await one.get("/s/shop/event?id=e-1"),
            await one.get("/api/v1/stores/shop/event?id=e-1"),
        )
    assert (page.status_code, answer.status_code) == (500, 500)
    for text in (page.text, answer.text):
        assert "hunter2" not in text
        assert "RuntimeError" not in text
    number = answer.json()["error"].partition("(error ")[2][:8]
    assert any(number in record.getMessage() for record in caplog.records)
