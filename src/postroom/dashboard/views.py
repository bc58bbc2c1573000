"""The answers of the dashboard as data: the JSON API returns them, the pages show them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from postroom.admin.bounded_search import BoundedSearch
from postroom.admin.event_facts import describe, lane_of, payload_facts, summary
from postroom.admin.key_sequence import outline_facts, sequence_facts, sequences
from postroom.admin.operation_facts import facts as operation_facts
from postroom.admin.story import CHILDREN, Asked, gather, merge
from postroom.admin.story_tree import Story, to_json
from postroom.admin.texts import instant
from postroom.admin.timeline import arrivals
from postroom.commands import AuditEntry
from postroom.dashboard.given import Given
from postroom.dashboard.masks import MASKED, Masks
from postroom.dashboard.sample import StreamNow
from postroom.dashboard.settings import Person
from postroom.dashboard.verdict import group_facts, judge, needs
from postroom.dashboard.watch import StoreWatch
from postroom.errors import NotFoundError
from postroom.event import INBOX_STREAM_PREFIX
from postroom.lookup import MAX_INBOX_ROWS, InboxStats
from postroom.model import history
from postroom.model.controls import Control
from postroom.record import Record
from postroom.search import Outline

SCAN_LIMIT = 10_000
KEY_SCAN = 2_000
STORY_LIMIT = 300
PAGE = 50
_TAIL = 12


@dataclass(frozen=True)
class Asker:
    """The person that asks, and the masks for everyone."""

    person: Person
    masks: Masks


# -- the whole store ------------------------------------------------------------------------------
async def overview(watch: StoreWatch) -> dict[str, Any]:
    """Return the verdict, the streams, the problems, operations, audit entries and a tail."""
    found = await watch.samples.get()
    groups = await watch.groups.get()
    findings = await watch.findings.get()
    verdict = judge(found, watch.samples.error, watch.samples.read_at)
    return {
        "store": watch.name,
        "at": instant(int(found.at * 1_000_000)),
        "age_seconds": round(max(0.0, time.time() - found.at), 1),
        "verdict": verdict._asdict(),
        "findings": {
            level: sum(one.level == level for one in findings)
            for level in ("error", "warning", "info")
        },
        "streams": [stream_facts(one) for one in found.streams],
        "inboxes": [inbox_facts(one) for one in found.inboxes],
        "topics": [control_facts(one) for one in found.topic_controls],
        "needs": needs(found, groups),
        "operations": [operation_facts(one) for one in found.operations],
        "audit": [audit_facts(one) for one in found.audit],
        "tail": [tail_facts(one) for one in found.tail[:_TAIL]],
    }


def stream_facts(one: StreamNow) -> dict[str, Any]:
    return {
        "name": one.name,
        "consumer": one.consumer,
        "counts": dict(one.counts),
        "waiting": one.waiting,
        "dead": one.dead,
        "lag_seconds": round(one.lag_seconds, 3),
        "blocked_keys": one.blocked_keys,
        "added_per_second": _rounded(one.added),
        "confirmed_per_second": _rounded(one.confirmed),
        "p50_seconds": _rounded(one.p50),
        "p99_seconds": _rounded(one.p99),
        "empty_seconds": _rounded(one.empty_seconds),
        "health": one.health,
        "relays": [relay._asdict() for relay in one.relays],
        "lanes": list(one.lanes),
        "pause": None if one.pause is None else control_facts(one.pause),
        "limits": None if one.limits is None else control_facts(one.limits),
        "conditions": [
            {"text": c.text, "is_red": c.is_red, "cause": c.cause} for c in one.conditions
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def inbox_facts(one: InboxStats) -> dict[str, Any]:
    return {
        "consumer": one.consumer,
        "rows": one.rows,
        "rows_are_more": one.rows >= MAX_INBOX_ROWS,
        "oldest_at": instant(one.oldest_us),
    }


def control_facts(one: Control) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "name": one.name,
        "paused": one.paused,
        "since": instant(one.paused_us) if one.paused else None,
        "until": instant(one.until_us) if one.paused else None,
        "reason": one.reason,
        "who": one.who,
        "max_per_second": one.max_per_second,
        "max_in_flight": one.max_in_flight,
        "limits": one.limits if one.limited else None,
    }


def audit_facts(one: AuditEntry) -> dict[str, Any]:
    return {
        "at": instant(one.at_us),
        "who": one.who,
        "what": one.what,
        "how_many": one.how_many,
        "about": one.about,
    }


def tail_facts(one: Outline) -> dict[str, Any]:
    """Return an event of a list, without payload."""
    return {
        **outline_facts(one),
        "stream": one.stream,
        "key": one.key,
        "correlation_id": one.correlation_id,
    }


async def stream(watch: StoreWatch, name: str) -> dict[str, Any]:
    """Return one stream with its causes of dead letters and its controls."""
    found = await watch.samples.get()
    now = found.stream(name)
    if now is None:
        raise NotFoundError(f"no stream {name!r}: a stream is known once it has events or a relay")
    blocked = [
        one for one in needs(found, ()) if one["kind"] == "blocked" and one["stream"] == name
    ]
    return {
        **stream_facts(now),
        "blocked": blocked,
        "operations": [operation_facts(one) for one in found.operations],
        "at": instant(int(found.at * 1_000_000)),
    }


async def consumer(watch: StoreWatch, name: str) -> dict[str, Any]:
    """Return a consumer: its inbox rows, its stored messages, and its pause."""
    found = await watch.samples.get()
    inboxes = [
        one for one in found.inboxes if name in (one.consumer, one.consumer.partition("/")[0])
    ]
    stored = found.stream(f"{INBOX_STREAM_PREFIX}{name}")
    controls = [one for one in found.controls if (one.kind, one.name) == ("consumer", name)]
    if not inboxes and stored is None and not controls:
        raise NotFoundError(f"no consumer {name!r} has rows in an inbox here")
    return {
        "name": name,
        "inboxes": [inbox_facts(one) for one in inboxes],
        "stored": None if stored is None else stream_facts(stored),
        "controls": [control_facts(one) for one in controls],
    }


# -- events ---------------------------------------------------------------------------------------
async def event(watch: StoreWatch, event_id: str, asker: Asker) -> dict[str, Any]:
    """Return one event in full, without its payload: see `payload`."""
    store = await watch.open()
    record, details = await store.get(event_id), await store.details(event_id)
    if record is None or details is None:
        raise NotFoundError(f"no event with id {event_id!r}: check it, or it was pruned")
    received = [one for one in await arrivals(store, watch.name, event_id) if one["consumer"]]
    found = describe(record, details, await lane_of(store, record), received)
    del found["payload"]
    headers = asker.masks.headers(found["headers"])
    if not asker.person.payloads:
        headers = dict.fromkeys(headers, MASKED)
    return {**found, "headers": headers, "payload_bytes": len(record.payload)}


async def payload(watch: StoreWatch, event_id: str, asker: Asker) -> dict[str, Any]:
    """Return the payload of an event, with masks applied."""
    record = await found_event(watch, event_id)
    shown = asker.masks.payload(payload_facts(record))
    return {"id": record.id, "content_type": record.content_type, "payload": shown}


async def found_event(watch: StoreWatch, event_id: str) -> Record:
    record = await (await watch.open()).get(event_id)
    if record is None:
        raise NotFoundError(f"no event with id {event_id!r}: check it, or it was pruned")
    return record


async def key(watch: StoreWatch, name: str, limit: int = PAGE) -> dict[str, Any]:
    """Return the sequences of a key."""
    found = await sequences(await watch.open(), name, None, KEY_SCAN)
    if not found:
        raise NotFoundError(f"no event of key {name!r}: check it, or its events were pruned")
    return {"key": name, "sequences": [sequence_facts(one, limit) for one in found]}


async def events(watch: StoreWatch, given: Given, limit: int = PAGE) -> dict[str, Any]:
    """Return the events of a selection: by index, or within bounds."""
    store = await watch.open()
    search = BoundedSearch(given.selection(), scan_limit=SCAN_LIMIT)
    found: list[Record] = []
    following: int | None = None
    async for record in search.records(store):
        if len(found) == limit:
            following = found[-1].seq
            break
        found.append(record)
    stopped = None if following is not None else await search.stopped_at(store)
    return {
        "events": [summary(one) for one in found],
        "next_after": None if following is None else str(following),
        "stopped_after": None if stopped is None else str(stopped.seq),
        "stopped_at": None if stopped is None else instant(stopped.created_us),
        "notes": search.notes(),
    }


async def look_up(watch: StoreWatch, text: str) -> tuple[str, str]:
    """Return what a text of the search box names: event, key, group, story or type."""
    store = await watch.open()
    if await store.get(text) is not None:
        return "event", text
    if await store.search.outline("key", text, 1):
        return "key", text
    groups = await watch.groups.get()
    if any(one.id == text for one in groups):
        return "group", text
    if "correlation" in await store.search.indexes() and await store.search.outline(
        "correlation_id", text, 1
    ):
        return "story", text
    return "type", text


async def groups(watch: StoreWatch) -> dict[str, Any]:
    """Return the dead letters grouped by cause."""
    return {"groups": [group_facts(one) for one in await watch.groups.get()]}


async def group(watch: StoreWatch, group_id: str) -> dict[str, Any]:
    """Return one group of dead letters, its first events and an example's traceback."""
    known = {one.id: one for one in await watch.groups.get()}
    if group_id not in known:
        watch.groups.expire()
        known = {one.id: one for one in await watch.groups.get()}
    if group_id not in known:
        raise NotFoundError(f"no group {group_id!r}: its dead letters were replayed or deleted")
    wanted = Given({"group": [group_id], "type": [known[group_id].type]})
    found = await events(watch, wanted)
    traceback = None
    if found["events"]:
        details = await (await watch.open()).details(found["events"][0]["id"])
        told = history.read(details.history if details is not None else None)
        traceback = next((e["traceback"] for e in told.entries[::-1] if e.get("traceback")), None)
    return {**group_facts(known[group_id]), **found, "traceback": traceback}


# -- operations, audit, doctor, story -------------------------------------------------------------
async def operations(watch: StoreWatch) -> dict[str, Any]:
    """Return the last operations, newest first."""
    found = await (await watch.open()).operations(limit=PAGE)
    return {"operations": [operation_facts(one) for one in found]}


async def operation(watch: StoreWatch, operation_id: str) -> dict[str, Any]:
    """Return one operation."""
    found = await (await watch.open()).operation(operation_id)
    if found is None:
        raise NotFoundError(f"no operation with id {operation_id!r}")
    return operation_facts(found)


async def audit(watch: StoreWatch, limit: int = 100) -> dict[str, Any]:
    """Return the last audit entries, newest first."""
    found = await (await watch.open()).audit_log(limit)
    return {"entries": [audit_facts(one) for one in found]}


async def doctor(watch: StoreWatch, *, fresh: bool = False) -> dict[str, Any]:
    """Return the findings of the doctor, errors first."""
    order = ("error", "warning", "info")
    found = await watch.findings.get(fresh=fresh)
    at = watch.findings.read_at
    return {
        "at": None if at is None else instant(int(at * 1_000_000)),
        "findings": [
            one._asdict() for one in sorted(found, key=lambda one: order.index(one.level))
        ],
    }


async def story(watches: Sequence[StoreWatch], asked: str) -> dict[str, Any]:
    """Return the tree of events that one caused another, over all stores of the dashboard."""
    stores = [Asked(one.name, one.name, await one.open(), is_open=True) for one in watches]
    found, failed = await gather(stores, asked, STORY_LIMIT)
    told = Story(merge(found))
    if not told.events and not failed:
        raise NotFoundError(f"no event with id or correlation id {asked!r}")
    facts = {one["id"]: one for one in to_json(told)}
    lines = [
        {
            "depth": shown.depth,
            "left_out": shown.left_out,
            "missing": shown.node.id if shown.node is not None and not shown.node.found else None,
            "event": facts.get(shown.node.id) if shown.node is not None else None,
        }
        for shown in told.walk(CHILDREN)
    ]
    return {
        "asked": asked,
        "summary": told.summary() if told.events else "",
        "lines": lines,
        "notes": list(dict.fromkeys(note for one in found for note in one.notes)),
        "unreachable": sorted(failed),
    }
