"""The pages in a real browser: actions by mouse and keyboard, no JavaScript, small screens, axe."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from pathlib import Path

import axe_playwright_python
import pytest
import uvicorn
from playwright.async_api import async_playwright

from tests.dashboard.place import dashboard
from tests.dashboard.test_hostile_text import TEXT, hostile  # noqa: F401 - a fixture
from tests.servers import programs

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(180)]

AXE = next(Path(axe_playwright_python.__file__).parent.rglob("axe.min.js")).read_text("utf-8")
PATIENCE = 15_000  # milliseconds


@asynccontextmanager
async def served(stores, **settings):
    """Serve a dashboard; yields its address."""
    app = dashboard(stores, **settings)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    server.install_signal_handlers = lambda: None
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@pytest.fixture
async def browser():
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=programs.program("chromium"), args=["--no-sandbox"]
        )
        yield browser
        await browser.close()


class Complaints(list):
    """Errors of a page: of scripts, of the console, of the content security policy, of requests."""

    def listen(self, page):
        page.on("console", lambda message: message.type == "error" and self.append(message.text))
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("dialog", lambda dialog: self.append(f"dialog {dialog.message}"))
        return self


async def sign_in(browser, url, token="admin", **context):
    context = await browser.new_context(**context)
    context.set_default_timeout(PATIENCE)
    page = await context.new_page()
    await page.goto(f"{url}/login")
    await page.fill("input[name=token]", token)
    await page.click("button[type=submit]")
    await page.wait_for_selector("h1")
    return page


async def violations(page):
    """Return what axe finds that is serious."""
    await page.evaluate(AXE)
    found = await page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        (one["id"], [node["target"] for node in one["nodes"]][:3])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


PAGES = (
    "", "events?state=dead", "event?id=e-1", "key?key=k3", "stream?name=orders", "audit", "doctor",
    "operations", "story?id=e-1", "act/replay?ids=e-1", "act/edit?ids=e-1", "event/payload?id=e-1",
)  # fmt: skip


async def test_every_page_is_sound_accessible_and_fits(store, browser):
    async with served({"shop": store}) as url:
        for scheme, width in (("light", 1280), ("dark", 380)):
            screen = {"width": width, "height": 900}
            page = await sign_in(browser, url, color_scheme=scheme, viewport=screen)
            complaints = Complaints().listen(page)
            for where in PAGES:
                await page.goto(f"{url}/s/shop/{where}")
                assert await violations(page) == [], (scheme, where)
                wide = await page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, (width, where)
            assert complaints == []
            await page.context.close()


async def test_a_blocked_key_is_found_and_buried(store, browser):
    """As an operator does it: from the verdict to the key, its head, an action with a reason."""
    async with served({"shop": store}, refresh_seconds=1.0) as url:
        page = await sign_in(browser, url, "operator")
        complaints = Complaints().listen(page)
        await page.click("text=k3 >> nth=0")
        await page.wait_for_selector("text=Blocked by")
        await page.click("text=Bury")
        await page.wait_for_selector("dialog[open] >> text=Bury the event e-3")
        assert await page.evaluate("document.activeElement.name") == "reason"
        await page.keyboard.type("the customer is gone")
        await page.dblclick("dialog button[type=submit]")
        await page.wait_for_selector("dialog >> text=Buried 1 event")
        await page.keyboard.press("Escape")
        assert complaints == []
        assert (await store.get("e-3")).state == "dead"
        made = [(e.who, e.what) for e in await store.audit_log(9)]
        assert made == [("olga", "bury"), ("olga", "request")]


async def test_selected_dead_letters_are_replayed(store, browser):
    async with served({"shop": store}) as url:
        page = await sign_in(browser, url)
        await page.goto(f"{url}/s/shop/events?state=dead")
        await page.check("[data-all]")
        await page.click("button:has-text('Replay')")
        await page.wait_for_selector("dialog[open] >> text=Replay 2 events")
        await page.fill("dialog input[name=reason]", "fixed")
        await page.press("dialog input[name=reason]", "Enter")
        await page.wait_for_selector("dialog >> text=Replayed 2 events")
        assert (await store.stats()).counts["dead"] == 0


async def test_an_error_of_an_action_is_shown_in_the_dialog(store, browser):
    async with served({"shop": store}) as url:
        page = await sign_in(browser, url)
        await page.goto(f"{url}/s/shop/event?id=e-1")
        await page.click("text=Replay")
        await page.wait_for_selector("dialog[open] input[name=reason]")
        await store.purge(["e-1"])  # meanwhile
        await page.fill("dialog input[name=reason]", "x")
        await page.click("dialog button[type=submit]")
        await page.wait_for_selector("dialog >> text=no event with id")


async def test_reading_and_acting_without_javascript(store, browser):
    async with served({"shop": store}) as url:
        page = await sign_in(browser, url, java_script_enabled=False)
        await page.click("a.name:has-text('orders')")
        await page.click("a.button:has-text('Pause')")
        await page.fill("input[name=reason]", "maintenance")
        await page.click("button:has-text('Pause')")
        await page.wait_for_selector("text=Paused stream orders")
        await page.reload()
        await page.wait_for_selector("text=Paused stream orders")
        assert [(one.name, one.paused) for one in await store.controls()] == [("orders", True)]
        assert len(await store.audit_log(9)) == 2


async def test_a_viewer_has_no_actions(store, browser):
    async with served({"shop": store}) as url:
        page = await sign_in(browser, url, "viewer")
        for where in ("", "event?id=e-1", "events?state=dead", "stream?name=orders", "key?key=k3"):
            await page.goto(f"{url}/s/shop/{where}")
            assert await page.locator("[href*='/act/'], [formaction*='/act/']").count() == 0
            assert await page.locator("text=Show payload").count() == 0


async def test_a_page_refreshes_while_it_is_visible_only(store, browser):
    async with served({"shop": store}, refresh_seconds=0.5) as url:
        page = await sign_in(browser, url, "viewer")
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        await page.goto(f"{url}/s/shop/")
        async with page.expect_request("**/s/shop/?live=1*"):
            pass
        await page.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
        await page.wait_for_load_state("networkidle")
        asked.clear()
        await page.wait_for_timeout(1_500)
        assert asked == []


async def test_hostile_text_runs_nowhere(hostile, browser):  # noqa: F811
    async with served({"shop": hostile}) as url:
        page = await sign_in(browser, url)
        complaints = Complaints().listen(page)
        await page.goto(f"{url}/s/shop/")
        await page.click("td a.mono >> nth=0")
        await page.wait_for_url("**/event?id=*")
        await page.goto(f"{url}/s/shop/")
        await page.click(".need a.mono >> nth=0")
        await page.wait_for_url("**/key?key=*")
        await page.goto(f"{url}/s/shop/")
        await page.fill("#q", f"key{TEXT}")
        await page.press("#q", "Enter")
        await page.wait_for_selector("text=Blocked by")
        await page.click("text=Retry now")
        await page.wait_for_selector("dialog[open]")
        assert complaints == []
