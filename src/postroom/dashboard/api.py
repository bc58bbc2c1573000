"""The JSON API, `/api/v1`: the same answers as the pages, and the same actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from postroom.dashboard import views
from postroom.dashboard.actions import ACTIONS, Order
from postroom.dashboard.calls import API, Call, Param, Visit
from postroom.dashboard.given import MAX_IDS
from postroom.dashboard.once import MAX_REASON
from postroom.errors import ConfigError
from postroom.model.controls import KINDS
from postroom.record import State

STORE = f"{API}/stores/{{store}}"
_ARRAY: Mapping[str, Any] = {"type": "array"}
_OBJECT: Mapping[str, Any] = {"type": "object"}
_TEXT: Mapping[str, Any] = {"type": "string"}
_MAYBE: Mapping[str, Any] = {"type": ["string", "null"]}
_NUMBER: Mapping[str, Any] = {"type": "number"}
_FLAG: Mapping[str, Any] = {"type": "boolean"}
_ID_TEXT: Mapping[str, Any] = {"type": "string", "pattern": "^[A-Za-z0-9_-]{8,64}$"}
_LEAST: Mapping[str, Any] = {"type": "integer", "minimum": 0}
_COUNT: Mapping[str, Any] = {"type": "integer", "minimum": 0}

_FILTERS = (
    Param(
        "state", "only events in this state", {"type": "string", "enum": [str(s) for s in State]}
    ),
    Param("stream", "only this stream"),
    Param("type", "only events of this type"),
    Param("topic", "only events for this topic"),
    Param("key", "only events of this key"),
    Param("error", "only events whose last error contains this"),
    Param("group", "only dead letters of this group"),
    Param("since", "only events created at or after: 2h (ago), 2026-05-01"),
    Param("until", "only events created before"),
    Param("correlation", "only events with this correlation id"),
    Param("causation", "only events that this event has caused"),
)
_IDS = Param(
    "ids", "ids of events", {"type": "array", "items": _TEXT, "maxItems": MAX_IDS}
)  # fmt: skip
_CONTROL = (
    Param("kind", "what is controlled", {"type": "string", "enum": list(KINDS)}, required=True),
    Param("name", "its name", required=True),
)  # fmt: skip
_OPERATION = (Param("operation", "id of the operation", required=True),)
_COPIES = Param("new_id", "send copies with new ids, unknown to every inbox", _FLAG)
_FOLLOWERS = Param("followers", "with one id: also the later events of its key", _FLAG)
_ALL = Param("all", "all events in the state", _FLAG)
BODIES: Mapping[str, tuple[Param, ...]] = {
    "replay": (
        _IDS, *_FILTERS[:9], _ALL, _COPIES, _FOLLOWERS,
        Param("rate", "of a filter: at most this many events a second, such as 50/s"),
        Param("canary", "of a filter: in growing groups that stop at the first failure", _FLAG),
        Param("limit", "of a filter: at most this many events", {"type": "integer", "minimum": 1}),
    ),
    "retry-now": (_IDS, *_FILTERS[:9], _ALL),
    "bury": (_IDS, *_FILTERS[:9], _ALL, _FOLLOWERS),
    "skip": (Param("ids", "id of the event", required=True),),
    "edit": (
        Param("ids", "id of the dead letter", required=True),
        Param("payload", "the payload as text"),
        Param("content_type", "its content type"),
        Param("headers", "a JSON object of all headers, as text"),
        Param("tombstone", "send no value", _FLAG),
    ),
    "purge": (_IDS, *_FILTERS[:9], _ALL),
    "pause": (*_CONTROL, Param("for", "a duration such as 10m; default: until it is resumed")),
    "resume": _CONTROL,
    "limit": (
        *_CONTROL,
        Param("per_second", "maximum attempts per second", {"type": "number"}),
        Param("in_flight", "maximum events in flight", {"type": "integer", "minimum": 1}),
    ),
    "operation-pause": _OPERATION,
    "operation-resume": _OPERATION,
    "operation-cancel": _OPERATION,
}  # fmt: skip
_ORDER = (
    Param("reason", "why, for the audit entry", {"type": "string", "maxLength": MAX_REASON}),
    Param("action_id", "8 to 64 letters, digits, - and _: a repeat does nothing", _ID_TEXT),
    Param("dry_run", "say what would be done; change nothing", _FLAG),
)  # fmt: skip

Ask = Callable[[Visit], Awaitable[Mapping[str, Any]]]


def _get(
    path: str,
    ask: Ask,
    text: str,
    *params: Param,
    payloads: bool = False,
    **answer: Mapping[str, Any],
) -> Call:
    async def handler(visit: Visit) -> Response:
        return JSONResponse(await ask(visit))

    return Call(
        f"{STORE}{path}", handler, text, payloads=payloads, params=params, answer=answer
    )  # fmt: skip


def _action(verb: str) -> Call:
    action = ACTIONS[verb]

    async def handler(visit: Visit) -> Response:
        return JSONResponse(await act(visit, verb))

    return Call(
        f"{STORE}/actions/{verb}", handler, f"{action.label}: plan it, or carry it out once",
        role=action.role, payloads=action.payloads, change=True,
        params=(*BODIES[verb], *_ORDER),
        answer={"dry_run": _FLAG, "verb": _TEXT},
    )  # fmt: skip


async def act(visit: Visit, verb: str) -> dict[str, Any]:
    """Plan an action, or carry it out once."""
    given, action = visit.given, ACTIONS[verb]
    if given.flag("dry_run"):
        plan = await action.plan(visit.watch, given)
        return {"dry_run": True, **plan.facts()}
    outcome = await visit.dashboard.carry_out(visit, verb)
    return {"dry_run": False, "verb": verb, **outcome._asdict()}


def read_order(visit: Visit) -> tuple[str, Order]:
    """Return the action id, and the order with its person and reason. Raises ConfigError."""
    given = visit.given
    reason = " ".join((given.text("reason", MAX_REASON) or "").split())
    if not reason:
        raise ConfigError("reason is missing: it is written into the audit log")
    return given.need("action_id"), Order(visit.person, reason)


def _event_id() -> Param:
    return Param("id", "id of the event", required=True)


def calls() -> list[Call]:
    """Return the calls of the API."""
    return [
        _get(
            "/overview", lambda v: views.overview(v.watch),
            "The verdict, streams, problems, operations, audit entries and a tail of events",
            verdict=_OBJECT, streams=_ARRAY, needs=_ARRAY, operations=_ARRAY, audit=_ARRAY,
            tail=_ARRAY, inboxes=_ARRAY, findings=_OBJECT,
        ),
        _get(
            "/stream", lambda v: views.stream(v.watch, v.given.need("name")),
            "One stream: counts, rates, relays, lanes, blocked keys, controls",
            Param("name", "name of the stream", required=True),
            name=_TEXT, counts=_OBJECT, waiting=_COUNT, relays=_ARRAY, lanes=_ARRAY,
        ),
        _get(
            "/consumer", lambda v: views.consumer(v.watch, v.given.need("name")),
            "One consumer: its inbox, its stored messages, its pause",
            Param("name", "name of the consumer", required=True),
            name=_TEXT, inboxes=_ARRAY,
        ),
        _get(
            "/events", lambda v: views.events(v.watch, v.given),
            "Events by filters, in the order they were written; bounded",
            *_FILTERS, Param("after", "only events after this seq", _LEAST),
            events=_ARRAY, next_after=_MAYBE, stopped_after=_MAYBE, notes=_ARRAY,
        ),
        _get(
            "/event", lambda v: views.event(v.watch, v.given.need("id"), v.dashboard.asker(v)),
            "One event in full, without its payload", _event_id(),
            id=_TEXT, state=_TEXT, timeline=_ARRAY, headers=_OBJECT,
        ),
        _get(
            "/event/payload",
            lambda v: views.payload(v.watch, v.given.need("id"), v.dashboard.asker(v)),
            "The payload of one event, masked", _event_id(), payloads=True,
            id=_TEXT, content_type=_TEXT, payload=_OBJECT,
        ),
        _get(
            "/key", lambda v: views.key(v.watch, v.given.need("key")),
            "The sequence of one key", Param("key", "the key", required=True),
            key=_TEXT, sequences=_ARRAY,
        ),
        _get(
            "/groups", lambda v: views.groups(v.watch), "Dead letters grouped by cause",
            groups=_ARRAY,
        ),
        _get(
            "/group", lambda v: views.group(v.watch, v.given.need("id")),
            "One group of dead letters with its first events",
            Param("id", "id of the group", required=True),
            group=_TEXT, count=_COUNT, events=_ARRAY, traceback=_MAYBE,
        ),
        _get(
            "/operations", lambda v: views.operations(v.watch), "Stored operations, newest first",
            operations=_ARRAY,
        ),
        _get(
            "/operation", lambda v: views.operation(v.watch, v.given.need("id")),
            "One stored operation", Param("id", "id of the operation", required=True),
            id=_TEXT, state=_TEXT, handled=_COUNT,
        ),
        _get(
            "/audit", lambda v: views.audit(v.watch, v.given.number("limit", 1, 1_000) or 100),
            "Audit entries, newest first",
            Param("limit", "maximum entries", {"type": "integer", "minimum": 1, "maximum": 1_000}),
            entries=_ARRAY,
        ),
        _get("/doctor", lambda v: views.doctor(v.watch), "Findings of the doctor", findings=_ARRAY),
        _get(
            "/story",
            lambda v: views.story(v.dashboard.watches, v.given.need("id")),
            "The events that one caused another, over all stores of the dashboard",
            Param("id", "id of an event, or a correlation id", required=True),
            summary=_TEXT, lines=_ARRAY, notes=_ARRAY, unreachable=_ARRAY,
        ),
        *map(_action, ACTIONS),
    ]  # fmt: skip
