"""The pages: the answers of `views` as HTML. They work without JavaScript; htmx refreshes parts."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from postroom.admin.event_facts import payload_facts
from postroom.admin.texts import duration, many
from postroom.dashboard import charts, views
from postroom.dashboard.access import COOKIE
from postroom.dashboard.actions import ACTIONS, Plan
from postroom.dashboard.calls import Call, Visit
from postroom.dashboard.once import new_action_id
from postroom.dashboard.settings import Role
from postroom.dashboard.watch import StoreWatch
from postroom.errors import ConfigError
from postroom.record import State
from postroom.stores.edits import check_editable

if TYPE_CHECKING:
    from postroom.dashboard.app import Dashboard

STORE = "/s/{store}"
RANGES: Mapping[str, float] = {"15m": 900.0, "1h": 3_600.0, "3h": 10_800.0}
_SHOWN_PAYLOAD = 200_000


# -- rendering ------------------------------------------------------------------------------------
@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("postroom.dashboard"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.filters |= {
        "plain": _plain, "cut": _cut, "count": _count, "dur": _dur, "ago": _ago, "clock": _clock,
        "rate": _rate, "many": many,
    }  # fmt: skip
    return found


def _plain(text: object) -> str:
    """Return text with control and bidi characters as visible escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def _cut(text: object, most: int = 80) -> str:
    shown = _plain(text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _count(number: int) -> str:
    return f"{number:,}"


def _dur(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if 0 < seconds < 0.1:
        return f"{seconds * 1_000:.0f} ms"
    return duration(seconds)


def _ago(at: str | None) -> str:
    """Return the age of an instant."""
    try:
        then = datetime.fromisoformat(at or "")
    except ValueError:
        return _plain(at or "–")
    seconds = (datetime.now(UTC) - then).total_seconds()
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


def _clock(at: str | None) -> str:
    """Return an instant as operators read it, to the second."""
    return "–" if at is None else _plain(at[:19].replace("T", " "))


def _rate(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}" if value else "0"


def _render(
    dashboard: Dashboard, request: Request, template: str, status: int = 200, **values: Any
) -> HTMLResponse:
    base = dashboard.base(request)

    def static(name: str) -> str:
        return f"{base}/static/{name}?v={dashboard.version(name)}"

    body = _environment().get_template(template).render(base=base, static=static, **values)
    return HTMLResponse(body, status)


def _page(visit: Visit, template: str, title: str, *, status: int = 200, **values: Any) -> Response:
    dashboard, request, person = visit.dashboard, visit.request, visit.person
    base = f"{dashboard.base(request)}/s/{visit.watch.name}"

    def u(path: str, /, **query: Any) -> str:
        given = [(n, v) for n, v in query.items() if v is not None]
        return f"{base}/{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")

    may = {verb: action.is_for(person) for verb, action in ACTIONS.items()}
    return _render(
        dashboard, request, template, status, u=u, title=title, person=person, may=may,
        csrf=visit.identity.csrf, store=visit.watch.name,
        stores=[one.name for one in dashboard.watches], actions=ACTIONS,
        is_part="hx-request" in request.headers, given=visit.given,
        has_session=COOKIE in request.cookies, refresh=dashboard.settings.refresh_seconds,
        here=request.url.path, **values,
    )  # fmt: skip


def problem(
    dashboard: Dashboard, request: Request, status: int, text: str, headers: Mapping[str, str]
) -> Response:
    """Return the page of an error."""
    is_part = "hx-request" in request.headers
    answer = _render(
        dashboard, request, "problem.html", status, text=text, number=status, is_part=is_part
    )
    answer.headers.update(headers)
    return answer


def login(dashboard: Dashboard, request: Request, error: str, status: int = 200) -> Response:
    """Return the form to sign in."""
    settings, query = dashboard.settings, request.query_params
    return _render(
        dashboard, request, "login.html", status, error=error, next=query.get("next", "/")[:2_000],
        token=query.get("token", "")[:200], passwords=bool(settings.users),
        tokens=bool(settings.tokens), closed=settings.is_closed,
    )  # fmt: skip


# -- reading --------------------------------------------------------------------------------------
async def _overview(visit: Visit) -> Response:
    found = await views.overview(visit.watch)
    wanted = visit.given.text("range") or "15m"
    if wanted not in RANGES:
        raise ConfigError(f"range must be one of {', '.join(RANGES)}")
    points = charts.merged(list(one) for one in visit.watch.history.values())
    chart = charts.chart(points, visit.watch.marks, RANGES[wanted])
    template = "live.html" if visit.given.flag("live") else "overview.html"
    return _page(
        visit, template, "Overview", found=found, chart=chart, range=wanted, ranges=list(RANGES),
        sparks=_sparks(visit.watch), strip=_strips(found["streams"], visit.watch),
    )  # fmt: skip


def _sparks(watch: StoreWatch) -> dict[str, Any]:
    return {
        name: charts.sparkline([(p.at, p.lag_seconds) for p in points], "oldest waiting event")
        for name, points in watch.history.items()
    }


def _strips(found: list[dict[str, Any]], watch: StoreWatch) -> dict[str, Any]:
    sample = watch.samples.value
    strips = {}
    for facts in found:
        now = None if sample is None else sample.stream(facts["name"])
        if now is not None:
            strips[facts["name"]] = charts.lanes(now.lanes, now.relays)
    return strips


async def _stream(visit: Visit) -> Response:
    found = await views.stream(visit.watch, visit.given.need("name"))
    points = list(visit.watch.history.get(found["name"], ()))
    marks = [mark for mark in visit.watch.marks if mark.stream == found["name"]]
    return _page(
        visit, "stream.html", f"Stream {_cut(found['name'], 40)}", found=found,
        chart=charts.chart(points, marks, RANGES["15m"]), strip=_strips([found], visit.watch),
    )  # fmt: skip


async def _consumer(visit: Visit) -> Response:
    found = await views.consumer(visit.watch, visit.given.need("name"))
    return _page(visit, "consumer.html", f"Consumer {_cut(found['name'], 40)}", found=found)


async def _events(visit: Visit) -> Response:
    found = await views.events(visit.watch, visit.given)
    sample = await visit.watch.samples.get()
    return _page(
        visit, "events.html", "Events", found=found, filters=visit.given.filters,
        states=[str(state) for state in State], streams=[one.name for one in sample.streams],
    )  # fmt: skip


async def _search(visit: Visit) -> Response:
    """Lead from the text of the search box to what it names."""
    text = (visit.given.text("q") or "").strip()
    base = f"{visit.dashboard.base(visit.request)}/s/{visit.watch.name}"
    if not text:
        return RedirectResponse(f"{base}/events", 303)
    kind, name = await views.look_up(visit.watch, text)
    path, field = {
        "event": ("event", "id"), "key": ("key", "key"), "group": ("group", "id"),
        "story": ("story", "id"), "type": ("events", "type"),
    }[kind]  # fmt: skip
    return RedirectResponse(f"{base}/{path}?{urlencode({field: name})}", 303)


async def _event(visit: Visit) -> Response:
    found = await views.event(visit.watch, visit.given.need("id"), visit.dashboard.asker(visit))
    return _page(visit, "event.html", f"Event {_cut(found['id'], 40)}", found=found)


async def _payload(visit: Visit) -> Response:
    found = await views.payload(visit.watch, visit.given.need("id"), visit.dashboard.asker(visit))
    shown = found["payload"]
    if "json" in shown:
        text = json.dumps(shown["json"], indent=2, ensure_ascii=False)
    else:
        text = shown.get("text") or shown.get("hex") or shown.get("hidden") or ""
    more = max(0, len(text) - _SHOWN_PAYLOAD)
    lines = [_plain(line) for line in text[:_SHOWN_PAYLOAD].split("\n")]
    return _page(visit, "payload.html", "Payload", found=found, text="\n".join(lines), more=more)


async def _key(visit: Visit) -> Response:
    found = await views.key(visit.watch, visit.given.need("key"))
    return _page(visit, "key.html", f"Key {_cut(found['key'], 40)}", found=found)


async def _group(visit: Visit) -> Response:
    found = await views.group(visit.watch, visit.given.need("id"))
    return _page(visit, "group.html", f"Cause {found['group']}", found=found)


async def _operations(visit: Visit) -> Response:
    found = await views.operations(visit.watch)
    return _page(visit, "operations.html", "Operations", found=found)


async def _operation(visit: Visit) -> Response:
    found = await views.operation(visit.watch, visit.given.need("id"))
    request = json.dumps(found["request"], indent=2)
    return _page(
        visit, "operation.html", f"Operation {found['id']}", found=found, request_text=request
    )


async def _audit(visit: Visit) -> Response:
    limit = visit.given.number("limit", 1, 1_000) or 100
    return _page(visit, "audit.html", "Audit log", found=await views.audit(visit.watch, limit))


async def _doctor(visit: Visit) -> Response:
    return _page(visit, "doctor.html", "Doctor", found=await views.doctor(visit.watch))


async def _run_doctor(visit: Visit) -> Response:
    await views.doctor(visit.watch, fresh=True)
    base = visit.dashboard.base(visit.request)
    return RedirectResponse(f"{base}/s/{visit.watch.name}/doctor", 303)


async def _story(visit: Visit) -> Response:
    found = await views.story(visit.dashboard.watches, visit.given.need("id"))
    return _page(visit, "story.html", "Story", found=found)


# -- acting ---------------------------------------------------------------------------------------
def _confirm(verb: str) -> Callable[[Visit], Awaitable[Response]]:
    async def handler(visit: Visit) -> Response:
        values: dict[str, Any] = {"editor": None}
        plan: Plan | None = None
        if verb == "edit":
            values["editor"] = await _editor(visit)
        else:
            plan = await ACTIONS[verb].plan(visit.watch, visit.given)
        kept = [(n, v) for n, v in visit.given.pairs if n not in _ASKED]
        return _page(
            visit, "confirm.html", ACTIONS[verb].label, verb=verb, plan=plan, kept=kept,
            action=ACTIONS[verb], action_id=new_action_id(),
            by_filter=not visit.given.texts("ids"), **values,
        )  # fmt: skip

    return handler


_ASKED = ("rate", "canary", "new_id", "followers", "for", "per_second", "in_flight")


async def _editor(visit: Visit) -> dict[str, Any]:
    """Return headers and payload to be edited; masked ones would be sent with their masks."""
    event_id = visit.given.need("ids")
    store = await visit.watch.open()
    there = (await store.look_up([event_id])).get(event_id)
    sent_as = None if there is None else there.replaced_by
    record = check_editable(event_id, await store.get(event_id), sent_as)
    if visit.dashboard.masks:
        raise ConfigError(
            "this dashboard masks fields, and an edited event would be sent with the masks; use: "
            f"postroom edit {event_id}"
        )
    facts = payload_facts(record)
    is_text = "json" in facts
    headers = {n: v for n, v in record.headers.items() if not n.lower().startswith("postroom-")}
    return {
        "id": event_id,
        "is_text": is_text,
        "payload": json.dumps(facts["json"], indent=2, ensure_ascii=False) if is_text else "",
        "content_type": record.content_type,
        "headers": json.dumps(headers, indent=2, ensure_ascii=False),
        "error": record.last_error,
    }


def _act(verb: str) -> Callable[[Visit], Awaitable[Response]]:
    async def handler(visit: Visit) -> Response:
        outcome = await visit.dashboard.carry_out(visit, verb)
        if "hx-request" in visit.request.headers:
            answer = _page(visit, "outcome.html", "Done", outcome=outcome, verb=verb)
            answer.headers["hx-trigger"] = "acted"
            return answer
        base = f"{visit.dashboard.base(visit.request)}/s/{visit.watch.name}"
        query = urlencode({"action": visit.given.need("action_id")})
        return RedirectResponse(f"{base}/done?{query}", 303)

    return handler


async def _done(visit: Visit) -> Response:
    outcome = visit.dashboard.once.outcome(visit.watch.name, visit.given.need("action"))
    return _page(visit, "done.html", "Done", outcome=outcome)


def calls() -> list[Call]:
    """Return the calls of the pages."""
    found = [
        Call(f"{STORE}/", _overview, "Overview"),
        Call(f"{STORE}/stream", _stream, "A stream"),
        Call(f"{STORE}/consumer", _consumer, "A consumer"),
        Call(f"{STORE}/events", _events, "Events by filters"),
        Call(f"{STORE}/search", _search, "The page that the search box names"),
        Call(f"{STORE}/event", _event, "An event"),
        Call(f"{STORE}/event/payload", _payload, "The payload of an event", payloads=True),
        Call(f"{STORE}/key", _key, "A key"),
        Call(f"{STORE}/group", _group, "Dead letters of one cause"),
        Call(f"{STORE}/operations", _operations, "Stored operations"),
        Call(f"{STORE}/operation", _operation, "A stored operation"),
        Call(f"{STORE}/audit", _audit, "The audit log"),
        Call(f"{STORE}/doctor", _doctor, "Findings of the doctor"),
        Call(f"{STORE}/doctor", _run_doctor, "Run the doctor", Role.OPERATOR, change=True),
        Call(f"{STORE}/story", _story, "The events that one caused another"),
        Call(f"{STORE}/done", _done, "The result of an action"),
    ]
    for verb, action in ACTIONS.items():
        path, role, payloads = f"{STORE}/act/{verb}", action.role, action.payloads
        found.append(Call(path, _confirm(verb), f"{action.label}: dry run", role, payloads))
        found.append(Call(path, _act(verb), action.label, role, payloads, change=True))
    return found
