"""Actions: planned first, carried out once, audited with the person's name."""

from __future__ import annotations

import asyncio

import pytest

from postroom.dashboard import watch as watch_module
from postroom.record import State
from tests.dashboard.place import action_of, client, csrf_of, dashboard, sign_in


async def state_of(store, event_id):
    found = await store.get(event_id)
    return None if found is None else found.state


async def entries(store):
    return [(e.who, e.what, e.about) for e in await store.audit_log(50)][::-1]


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("replay", {"ids": ["e-1"]}), ("replay", {"group": "any", "all": True}),
        ("retry-now", {"ids": ["e-3"]}), ("bury", {"ids": ["e-3"]}), ("skip", {"ids": "e-3"}),
        ("purge", {"ids": ["e-1"]}), ("edit", {"ids": "e-1", "payload": "{}"}),
        ("pause", {"kind": "stream", "name": "orders"}),
        ("limit", {"kind": "stream", "name": "orders", "per_second": 5}),
    ],
)  # fmt: skip
async def test_a_dry_run_changes_nothing(act, store, verb, body):
    before = await store.stats()
    answer = (await act(verb, dry_run=True, reason=None, **body)).json()
    assert answer["dry_run"] is True
    assert answer["question"].endswith("?")
    assert answer["effects"]
    after = await store.stats()
    assert after.counts == before.counts
    assert await store.audit_log(9) == []
    assert await store.controls() == []
    assert await store.operations() == []


async def test_replay_of_one_event(act, store):
    answer = (await act("replay", ids=["e-1"], reason="customer exists now")).json()
    assert answer["text"] == "Replayed 1 event"
    assert await state_of(store, "e-1") == State.PENDING
    assert await entries(store) == [
        ("ada", "request", "replay e-1: customer exists now (action replay-00000001)"),
        ("ada", "replay", "e-1"),
    ]


@pytest.mark.parametrize(
    ("verb", "body", "event", "state"),
    [
        ("bury", {"ids": ["e-3"]}, "e-3", "dead"), ("bury", {"ids": ["e-3"], "followers": True}, "f-2", "dead"),
        ("skip", {"ids": "e-3"}, "e-3", "dead"), ("retry-now", {"ids": ["e-3"]}, "e-3", "failed"),
        ("purge", {"ids": ["e-1", "e-2"]}, "e-2", None), ("purge", {"stream": "orders"}, "e-1", None),
        ("bury", {"stream": "orders", "state": "failed"}, "e-3", "dead"),
        ("replay", {"ids": ["e-1", "e-2"]}, "e-2", "pending"),
        ("replay", {"ids": ["e-0"]}, "e-0", "pending"),
    ],
)  # fmt: skip
async def test_an_action_on_events(act, store, verb, body, event, state):
    answer = await act(verb, **body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["changed"] >= 1
    assert await state_of(store, event) == state
    assert [who for who, _, _ in await entries(store)] == ["ada"] * 2


async def test_retry_now_makes_an_event_due(act, store):
    before = (await store.get("e-3")).next_attempt_us
    await act("retry-now", ids=["e-3"])
    assert (await store.get("e-3")).next_attempt_us < before


async def test_edit_and_send(act, store):
    answer = (
        await act("edit", ids="e-1", payload='{"n": 99}', headers='{"tenant": "south"}')
    ).json()
    new = await store.get(answer["sent_as"])
    assert (new.data, new.headers["tenant"], new.state) == ({"n": 99}, "south", "pending")
    again = await act("edit", ids="e-1", payload="{}", action_id="another-one")
    assert again.status_code == 409
    wrong = await act("edit", ids="e-2", payload="{", action_id="a-third-one")
    assert wrong.status_code == 400


async def test_a_dashboard_with_masks_does_not_send_them(store):
    app = dashboard({"shop": store}, masks=["secret"])
    async with client(app, "admin") as one:
        page = await one.get("/s/shop/act/edit?ids=e-1")
        shown = await one.get("/s/shop/event/payload?id=e-1")
    assert page.status_code == 400
    assert "postroom edit e-1" in page.text
    assert "4111" not in shown.text
    assert "•••" in shown.text


async def test_pause_resume_and_limits(act, store):
    assert (await act("pause", kind="stream", name="orders", **{"for": "10m"})).status_code == 200
    (control,) = await store.controls()
    assert (control.paused, control.who, control.reason) == (True, "ada", "a test")
    assert (await act("resume", kind="stream", name="orders")).json()["changed"] == 1
    await act("limit", kind="topic", name="invoices", per_second=0.5, in_flight=3)
    (limited,) = [one for one in await store.controls() if one.limited]
    assert (limited.max_per_second, limited.max_in_flight) == (0.5, 3)
    refused = await act("limit", kind="consumer", name="x", per_second=1, action_id="another-1")
    assert refused.status_code == 400


async def test_a_replay_by_filter_is_a_stored_operation(act, store, ask):
    (group,) = (await ask("groups"))["groups"]
    answer = (await act("replay", group=group["group"], rate="10/s", canary=True)).json()
    (operation,) = await store.operations()
    assert (answer["operation"], operation.who, operation.total) == (operation.id, "ada", 2)
    assert '"per_second": 10.0' in operation.request
    assert '"canary": true' in operation.request
    same = (await act("replay", group=group["group"], action_id="a-second-one")).json()
    assert same["operation"] == operation.id
    assert "selects the same events and is running" in same["text"]
    for verb, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        assert (await act(f"operation-{verb}", operation=operation.id)).status_code == 200
        assert (await ask("operation", id=operation.id))["state"] == state
    late = await act("operation-resume", operation=operation.id, action_id="too-late-1")
    assert late.status_code == 400


# -- once -----------------------------------------------------------------------------------------
async def test_a_double_click_and_a_reload_act_once(app, store):
    browser = await sign_in(app, "operator")
    page = await browser.get("/s/shop/act/replay?ids=e-1")
    form = {
        "ids": "e-1",
        "new_id": "1",
        "reason": "again",
        "csrf": csrf_of(page),
        "action_id": action_of(page),
    }
    answers = await asyncio.gather(
        *(browser.post("/s/shop/act/replay", data=form) for _ in range(3))
    )
    answers.append(await browser.post("/s/shop/act/replay", data=form))
    assert {answer.headers["location"] for answer in answers} == {
        f"/s/shop/done?action={form['action_id']}"
    }
    assert "Replayed 1 event" in (await browser.get(answers[0].headers["location"])).text
    copies = [
        one
        for one in await store.search.newest(50)
        if one.type == "order.created" and one.state == "pending" and one.stream == "orders"
    ]
    assert len([one for one in copies if one.id not in ("e-4", "e-5")]) == 1
    assert len([e for e in await entries(store) if e[1] == "replay"]) == 1
    await browser.aclose()


async def test_an_action_is_recognized_after_a_restart(act, store):
    await act("replay", ids=["e-1"], new_id=True)
    restarted = dashboard({"shop": store})
    async with client(restarted, "admin") as one:
        answer = await one.post(
            "/api/v1/stores/shop/actions/replay",
            json={"ids": ["e-1"], "new_id": True, "reason": "x", "action_id": "replay-00000001"},
        )
    assert answer.json()["changed"] == 0
    assert "nothing was repeated" in answer.json()["text"]
    assert len([e for e in await entries(store) if e[1] == "replay"]) == 1


async def test_an_action_id_belongs_to_one_action_of_one_person(act, store):
    await act("replay", ids=["e-1"])
    for token, body in (("admin", {"ids": ["e-2"]}), ("operator", {"ids": ["e-1"]})):
        answer = await act("replay", token, **body)
        assert answer.status_code == 400
        assert "belongs to another action" in answer.json()["error"]
    assert await state_of(store, "e-2") == State.DEAD


async def test_an_action_that_could_not_be_planned_can_be_repeated(act, store):
    assert (await act("replay", ids=["e-4"])).status_code == 404  # it waits, and is not dead
    await store.bury(["e-4"], "x")
    assert (await act("replay", ids=["e-4"])).json()["changed"] == 1


async def test_a_client_that_leaves_does_not_stop_its_action(app, store):
    """The action is a task of its own: a request that ends early does not end it."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    replay = store.replay

    async def slow(*args, **more):
        begun.set()
        await go_on.wait()
        return await replay(*args, **more)

    store.replay = slow
    body = {"ids": ["e-1"], "reason": "x", "action_id": "slow-action"}
    async with client(app, "admin") as one:
        request = asyncio.create_task(one.post("/api/v1/stores/shop/actions/replay", json=body))
        await asyncio.wait_for(begun.wait(), 30)
        request.cancel()
        await asyncio.wait({request})
        go_on.set()
        answer = await one.post("/api/v1/stores/shop/actions/replay", json=body)
    assert answer.json()["changed"] == 1


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"reason": " "}, "reason is missing"), ({"action_id": "x"}, "8 to 64"),
        ({"action_id": None}, "action_id is missing"), ({"reason": "x" * 501}, "longer than 500"),
        ({"ids": ["e-1"] * 2 + [f"x{n}" for n in range(500)]}, "at most 500"),
        ({"ids": []}, "no events selected"), ({"ids": {"a": 1}}, "must be text"),
        ({"ids": ["e-9"]}, "no event with id"), ({"ids": ["e-4"]}, "must be dead or done"),
    ],
)  # fmt: skip
async def test_what_an_action_refuses(act, store, body, text):
    answer = await act("replay", **{"ids": ["e-1"], **body})
    assert answer.status_code in (400, 404)
    assert text in answer.json()["error"]
    assert await store.audit_log(9) == []


async def test_a_page_is_fresh_after_an_action(store, monkeypatch):
    app = dashboard({"shop": store}, refresh_seconds=3_600.0)
    monkeypatch.setattr(watch_module, "REST", 0)
    async with client(app, "admin") as one:
        before = (await one.get("/api/v1/stores/shop/overview")).json()
        await one.post(
            "/api/v1/stores/shop/actions/purge",
            json={"ids": ["e-1"], "reason": "x", "action_id": "purge-it-1"},
        )
        after = (await one.get("/api/v1/stores/shop/overview")).json()
    assert [s["dead"] for s in before["streams"] if s["name"] == "orders"] == [2]
    assert [s["dead"] for s in after["streams"] if s["name"] == "orders"] == [1]
