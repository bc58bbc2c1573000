"""A store with events in every state, and clients of the dashboard in every role."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import httpx

from postroom import Event, SyncOutbox
from postroom.dashboard import Dashboard, DashboardSettings, Role, Token, digest_of
from postroom.settlement import DeadOutcome, FailedOutcome
from postroom.store import Member
from postroom.testing.store.tools import FAR, Hand

ORIGIN = "http://dash.test"
PEOPLE = {
    "viewer": Token("victor", digest_of("viewer"), Role.VIEWER),
    "reader": Token("rita", digest_of("reader"), Role.VIEWER, payloads=True),
    "operator": Token("olga", digest_of("operator"), Role.OPERATOR),
    "editor": Token("eddy", digest_of("editor"), Role.OPERATOR, payloads=True),
    "admin": Token("ada", digest_of("admin"), Role.ADMIN, payloads=True),
}
HOSTILE = "<script>alert('x')</script>\u202e\x9b&amp;\"/../'"


def events(number=10, *, key=None, stream="orders", prefix="e", kind="order.created", **more):
    return [
        Event(
            kind, {"n": n, "secret": "4111"}, id=f"{prefix}-{n}", key=key or f"k{n}",
            stream=stream, headers={"tenant": "north"}, **more,
        )
        for n in range(number)
    ]  # fmt: skip


def add(path, *rows):
    with closing(sqlite3.connect(path, timeout=20)) as conn:
        outbox = SyncOutbox()
        with outbox.transaction(conn):
            for one in rows:
                outbox.add(conn, one)


async def fill(store, path):
    """Write done, dead, failed and waiting events: e-0 done, e-1 e-2 dead, e-3 blocks its key."""
    add(path, *events(6))
    add(path, *[Event("order.paid", {}, id=f"f-{n}", key="k3", stream="orders") for n in range(3)])
    add(path, *events(2, stream="mail", prefix="m", kind="mail.sent"))
    add(path, Event("mail.sent", {}, id="other", key="k3", stream="mail"))  # another order
    hand = await Hand(store, stream="orders").take()
    await store.heartbeat("orders", Member("anna", healthy=True, name="relay-1"), FAR, hand.held)
    rows = {one.id: one for one in await hand.read()}
    await hand.settle(
        done=[rows["e-0"]],
        dead=[
            DeadOutcome(rows["e-1"], 5, "no such customer 17"),
            DeadOutcome(rows["e-2"], 5, "no such customer 18"),
        ],
        failed=[FailedOutcome(rows["e-3"], 1, FAR, "connection refused")],
    )
    await hand.settle(parked=[rows["f-0"], rows["f-1"], rows["f-2"]])
    return hand


def dashboard(stores, **settings):
    settings = {"tokens": list(PEOPLE.values()), "refresh_seconds": 0.0} | settings
    return Dashboard(stores, DashboardSettings(**settings))


def client(app, token=None, **more):
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, **more)
    return httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers=headers)


async def sign_in(app, token):
    """Return a client with a session, as a browser has it."""
    browser = client(app)
    browser.headers["sec-fetch-site"] = "same-origin"
    answer = await browser.post("/login", data={"token": token})
    assert answer.status_code == 303, answer.text
    return browser


def csrf_of(page):
    return page.text.partition('name="csrf" value="')[2].partition('"')[0]


def action_of(page):
    return page.text.partition('name="action_id" value="')[2].partition('"')[0]
