"""Signing in: tokens, passwords, sessions, a trusted proxy, a hook; and its limits."""

from __future__ import annotations

import base64
import json

import pytest

from postroom.dashboard import Person, Proxy, Role, Token, User, access, hash_password
from postroom.dashboard.access import Failures, verify_password
from postroom.errors import ConfigError
from tests.dashboard.place import PEOPLE, client, dashboard, sign_in

PASSWORD = "correct horse battery"
HASH = hash_password(PASSWORD)


def basic(name, password):
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


async def whoami(one, session=None, **more):
    if session is not None:
        more["headers"] = {"cookie": f"postroom_session={session}"}
    answer = await one.get("/api/v1", **more)
    return answer.json()["person"] if answer.status_code == 200 else answer.status_code


def test_a_password_is_hashed_with_its_own_salt():
    other = hash_password(PASSWORD)
    assert other != HASH
    assert HASH.startswith("scrypt$16384$8$1$")
    assert verify_password(PASSWORD, HASH)
    assert verify_password(PASSWORD, other)
    assert not verify_password(PASSWORD + " ", HASH)


async def test_basic_authentication(store):
    app = dashboard({"shop": store}, users=[User("anna", HASH, Role.OPERATOR)])
    async with client(app) as one:
        anna = {"name": "anna", "role": "operator", "payloads": False}
        assert await whoami(one, headers=basic("anna", PASSWORD)) == anna
        assert await whoami(one, headers=basic("anna", "wrong")) == 401
        assert await whoami(one, headers=basic("ada", PASSWORD)) == 401
        assert await whoami(one, headers={"authorization": "Basic ???"}) == 401
    await app.close()


async def test_a_password_is_sent_along_so_that_a_change_needs_a_csrf_token(store):
    app = dashboard({"shop": store}, users=[User("anna", HASH, Role.OPERATOR)])
    body = {"kind": "stream", "name": "orders", "reason": "x", "action_id": "abcdefgh"}
    async with client(app) as one:
        headers = {**basic("anna", PASSWORD), "sec-fetch-site": "same-origin"}
        for token in ({}, {"x-csrf-token": "wrong"}, {"x-csrf-token": b"caf\xe9"}):
            answer = await one.post(
                "/api/v1/stores/shop/actions/pause", json=body, headers={**headers, **token}
            )
            assert answer.status_code == 403
    assert await store.controls() == []
    await app.close()


async def test_a_session_ends_with_its_user_and_its_role_is_that_of_now(store):
    app = dashboard({"shop": store}, users=[User("anna", HASH)], secret="s" * 32)
    one = client(app)
    one.headers["sec-fetch-site"] = "same-origin"
    answer = await one.post(
        "/login", data={"name": "anna", "password": PASSWORD, "next": "/s/shop/audit"}
    )
    assert answer.headers["location"] == "/s/shop/audit"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie  # it came by http
    assert (await whoami(one))["role"] == "viewer"
    later = dashboard({"shop": store}, users=[User("anna", HASH, Role.ADMIN)], secret="s" * 32)
    assert (await whoami(client(later), one.cookies["postroom_session"]))["role"] == "admin"
    removed = dashboard({"shop": store}, users=[User("bert", HASH)], secret="s" * 32)
    assert await whoami(client(removed), one.cookies["postroom_session"]) == 401
    other_key = dashboard({"shop": store}, users=[User("anna", HASH)], secret="t" * 32)
    assert await whoami(client(other_key), one.cookies["postroom_session"]) == 401
    await one.post("/logout")
    assert await whoami(one) == 401


async def test_a_forged_or_old_session_is_refused(app, store):
    one = await sign_in(app, "viewer")
    body, _, signature = one.cookies["postroom_session"].partition(".")
    facts = json.loads(base64.urlsafe_b64decode(body + "==")) | {"n": "ada"}
    forged = base64.urlsafe_b64encode(json.dumps(facts).encode()).decode()
    for value in (f"{forged}.{signature}", body, "", "x.y", f"{body}.{signature}0"):
        assert await whoami(client(app), value) == 401
    short = dashboard({"shop": store}, session_seconds=-10.0)
    old = await sign_in(short, "admin")
    assert await whoami(old) == 401


async def test_cookies_are_for_https_if_the_request_or_the_settings_say_so(store):
    app = dashboard({"shop": store}, secure_cookies=True)
    one = client(app)
    answer = await one.post(
        "/login", data={"token": "admin"}, headers={"sec-fetch-site": "same-origin"}
    )
    assert "Secure" in answer.headers["set-cookie"]


@pytest.mark.parametrize("wanted", ["//evil.test/", "https://evil.test/", "/\\evil.test", "/login"])
async def test_signing_in_leads_nowhere_else(app, wanted):
    one = client(app)
    answer = await one.post(
        "/login", data={"token": "admin", "next": wanted}, headers={"sec-fetch-site": "same-origin"}
    )
    assert answer.headers["location"] == "/"


async def test_failed_attempts_are_limited(store):
    app = dashboard({"shop": store}, users=[User("anna", HASH)])
    one = client(app)
    for _ in range(10):
        assert await whoami(one, headers={"authorization": "Bearer wrong"}) == 401
    assert await whoami(one, headers={"authorization": "Bearer admin"}) == 429
    answer = await one.post(
        "/login",
        data={"name": "anna", "password": PASSWORD},
        headers={"sec-fetch-site": "same-origin"},
    )
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "60"


def test_failures_are_counted_for_a_minute(monkeypatch):
    now = 1_000.0
    monkeypatch.setattr(access.time, "monotonic", lambda: now)
    failures = Failures()
    for _ in range(10):
        assert not failures.is_full("a")
        failures.add("a")
    assert failures.is_full("a")
    assert not failures.is_full("b")
    now += 61
    assert not failures.is_full("a")


PROXY = Proxy(("10.0.0.5", "10.1.0.0/16"), "X-User", Role.VIEWER, "X-Role")


@pytest.mark.parametrize(
    ("address", "headers", "found"),
    [
        ("10.0.0.5", {"x-user": "anna"}, ("anna", "viewer")),
        ("10.1.2.3", {"x-user": "anna", "x-role": "operator"}, ("anna", "operator")),
        ("10.0.0.5", {"x-user": "anna", "x-role": "god"}, ("anna", "viewer")),
        ("10.0.0.6", {"x-user": "anna"}, 401),
        ("127.0.0.1", {"x-user": "anna", "x-forwarded-for": "10.0.0.5"}, 401),
        ("10.0.0.5", {}, 401),
        ("10.0.0.5", {"x-user": " "}, 401),
        ("10.0.0.5", [("x-user", "anna"), ("x-user", "ada")], 401),
    ],
)  # fmt: skip
async def test_the_header_of_the_trusted_proxy_alone_counts(store, address, headers, found):
    app = dashboard({"shop": store}, tokens=[], proxy=PROXY)
    async with client(app, client=(address, 1234)) as one:
        person = await whoami(one, headers=headers)
    assert (person if isinstance(person, int) else (person["name"], person["role"])) == found


async def test_a_hook_of_ones_own(store):
    async def hook(request):
        name = request.headers.get("x-sso")
        return Person(name, Role.ADMIN, payloads=True) if name else None

    app = dashboard({"shop": store}, tokens=[], authenticate=hook)
    async with client(app) as one:
        assert (await whoami(one, headers={"x-sso": "anna"}))["name"] == "anna"
        assert await whoami(one) == 401


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: User("anna", "secret"), "not a hash"),
        (lambda: Token("anna", "secret"), "64 hexadecimal digits"),
        (lambda: Proxy(()), "needs its address"),
        (lambda: Proxy(("proxy.local",)), "address of the dashboard's proxy"),
        (lambda: dashboard({"Shop!": "memory:"}), "store's name"),
        (lambda: dashboard({}), "at least one store"),
        (lambda: dashboard({"a": "memory:"}, secret="short"), "32 characters"),
        (lambda: dashboard({"a": "memory:"}, tokens=[PEOPLE["admin"]] * 2), "two users or tokens"),
        (lambda: dashboard({"a": "memory:"}, masks=["$.a["]), "not a path"),
    ],
)
def test_wrong_settings_are_refused(make, text):
    with pytest.raises(ConfigError, match=text):
        make()
