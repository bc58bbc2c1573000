"""The dashboard under a prefix, in other applications; its API document; masks."""

from __future__ import annotations

import json
import re

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from postroom import MemoryStore
from postroom.dashboard.masks import MASKED, Masks
from tests.dashboard.place import client, csrf_of, dashboard
from tests.dashboard.test_calls import ANSWERS, VERBS


def in_fastapi(app):
    outer = FastAPI()
    outer.mount("/ops/postroom", app)
    return outer


def in_starlette(app):
    return Starlette(routes=[Mount("/ops/postroom", app)])


def by_root_path(app):
    """As a page shows it for Django: the whole path, and root_path."""

    async def outer(scope, receive, send):
        await app({**scope, "root_path": "/ops/postroom"}, receive, send)

    return outer


@pytest.mark.parametrize("mount", [in_fastapi, in_starlette, by_root_path])
async def test_it_works_under_a_prefix(store, mount):
    app = dashboard({"shop": store})
    async with client(mount(app)) as one:
        one.headers["sec-fetch-site"] = "same-origin"
        first = await one.get("/ops/postroom/s/shop/event?id=e-1")
        assert first.headers["location"].startswith("/ops/postroom/login?next=%2Fs%2Fshop%2Fevent")
        form = {"token": "admin", "next": "/s/shop/event?id=e-1"}
        signed = await one.post("/ops/postroom/login", data=form)
        assert "Path=/ops/postroom" in signed.headers["set-cookie"]
        assert signed.headers["location"] == "/ops/postroom/s/shop/event?id=e-1"
        page = await one.get(signed.headers["location"])
        links = re.findall(r'(?:href|src|action|hx-get|hx-post)="([^"#]*)"', page.text)
        assert links
        assert all(link.startswith("/ops/postroom/") for link in links)
        for link in links:
            if "/static/" in link:
                assert (await one.get(link)).status_code == 200
        page = await one.get("/ops/postroom/s/shop/act/replay?ids=e-1")
        form = {"csrf": csrf_of(page), "ids": "e-1", "reason": "x", "action_id": "abcdefgh"}
        done = await one.post("/ops/postroom/s/shop/act/replay", data=form)
        assert "Replayed 1 event" in (await one.get(done.headers["location"])).text
        assert (await one.get("/ops/postroom/api/v1/stores/x/overview")).json()["error"]


async def test_several_stores_have_a_tab_each(store):
    app = dashboard({"shop": store, "other": MemoryStore()})
    async with client(app, "viewer") as one:
        page = await one.get("/s/other/")
        assert page.status_code == 200
        assert 'href="/s/shop/"' in page.text
        assert "No stream has events or a relay yet" in page.text
        story = await one.get("/api/v1/stores/other/story?id=e-1")
        assert story.json()["lines"][0]["event"]["id"] == "e-1"
    await app.close()


async def test_the_document_describes_every_call_and_its_answers(app, ask):
    async with client(app, "viewer") as one:
        found = (await one.get("/api/v1/openapi.json")).json()
    assert found["openapi"] == "3.1.0"
    paths = {f"/api/v1/stores/{{store}}/{path}": "get" for path in ANSWERS}
    paths |= {f"/api/v1/stores/{{store}}/actions/{verb}": "post" for verb in VERBS}
    paths |= {"/api/v1": "get"}
    assert {path: next(iter(methods)) for path, methods in found["paths"].items()} == paths
    (group,) = (await ask("groups"))["groups"]
    for path in ANSWERS:
        given = {
            "name": "orders", "id": group["group"] if path == "group" else "e-1", "key": "k3",
        }  # fmt: skip
        if path in ("consumer", "operation"):
            continue
        described = found["paths"][f"/api/v1/stores/{{store}}/{path}"]["get"]
        names = {one["name"] for one in described["parameters"] if one["required"]}
        answer = await ask(path, **{n: v for n, v in given.items() if n in names})
        schema = described["responses"]["200"]["content"]["application/json"]["schema"]
        assert set(schema["required"]) <= set(answer), path
        kinds = {"array": list, "object": dict, "string": str, "integer": int}
        for name, one in schema["properties"].items():
            if isinstance(one["type"], str):
                assert isinstance(answer[name], kinds[one["type"]]), (path, name)


@pytest.mark.parametrize(
    ("masks", "masked"),
    [
        (["card"], {"card": MASKED, "a": [{"CARD": MASKED, "b": 1}, {"b": 2}]}),
        (["$.a[0].b"], {"card": "4", "a": [{"CARD": "5", "b": MASKED}, {"b": 2}]}),
        (["$.a[*].b"], {"card": "4", "a": [{"CARD": "5", "b": MASKED}, {"b": MASKED}]}),
        (["$.a"], {"card": "4", "a": MASKED}),
        (["$.nothing.here", "$.card.x"], {"card": "4", "a": [{"CARD": "5", "b": 1}, {"b": 2}]}),
    ],
)
def test_masks(masks, masked):
    payload = {"card": "4", "a": [{"CARD": "5", "b": 1}, {"b": 2}]}
    assert Masks(masks).payload({"json": payload}) == {"json": masked}


def test_a_payload_that_cannot_be_masked_is_hidden():
    assert Masks([]).payload({"hex": "00"}) == {"hex": "00"}
    assert "00" not in json.dumps(Masks(["card"]).payload({"hex": "00"}))
    assert "secret" not in json.dumps(Masks(["card"]).payload({"text": "[[secret]]"}))
    assert Masks(["Tenant"]).headers({"tenant": "x", "y": "z"}) == {"tenant": MASKED, "y": "z"}
