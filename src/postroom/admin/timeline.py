"""The timeline of an event: from its writing transaction to the inboxes that received it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from postroom.admin.texts import instant
from postroom.event import INBOX_STREAM_PREFIX
from postroom.lookup import Details
from postroom.model import history, receipts
from postroom.model.clock import to_microseconds
from postroom.record import Record, State, row_id
from postroom.store import Lease, Store

Moment = tuple[Any, str]


async def arrivals(store: Store, url: object, event_id: str) -> list[dict[str, Any]]:
    """Return which consumers of an open store have received an event.

    `state` is done, received (its handler has not committed), or the state of a message in a
    durable inbox; None if there is no row.
    """
    facts: dict[str, Any] = {"store": str(url), "consumer": None, "at": None, "state": None}
    found = [
        {
            **facts, "consumer": one.consumer, "at": instant(one.at_us),
            "state": "done" if one.done else "received",
        }
        for one in await store.acceptances([event_id])
    ]  # fmt: skip
    for stream in await store.streams():
        if stream.startswith(INBOX_STREAM_PREFIX):
            consumer = stream.removeprefix(INBOX_STREAM_PREFIX)
            stored = await store.get(row_id(consumer, event_id))
            if stored is not None:
                at = instant(stored.created_us)
                kept = {"at": at, "state": stored.state, "stored": True}
                found.append({**facts, "consumer": consumer, **kept})
    return found or [facts]


def timeline(
    record: Record,
    details: Details,
    lane: tuple[Lease | None, str] = (None, ""),
    received: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, str | None]]:
    """Return past and planned steps of an event in chronological order; those without a time last.

    Times of attempts and commands are those of the processes that made them; the time in an
    inbox is that of its database.
    """
    moments: list[Moment] = [
        (record.occurred_us, "occurred"),
        (record.created_us, "written to the outbox"),
        (details.available_us, "due"),
        (details.settled_us, _end(record, details)),
    ]
    if details.settled_us is None:
        moments.append((record.next_attempt_us, "next attempt"))
        moments.append((record.expires_us, "expires, if it is not sent before"))
    if record.state == State.PROCESSING and details.lease_owner:
        lease, name = lane
        is_same = lease is not None and lease.owner == details.lease_owner
        relay = name if is_same and name else details.lease_owner
        moments.append((details.lease_until_us, f"end of the lease of {relay}, which handles it"))
    moments += _told(history.read(details.history))
    received_at = [(_microseconds(one["at"]), _arrival(one)) for one in received]
    moments += received_at
    known = sorted(((us, what) for us, what in moments if us is not None), key=_when)
    past: list[dict[str, str | None]] = [{"at": str(instant(us)), "what": w} for us, w in known]
    return past + [{"at": None, "what": what} for us, what in received_at if us is None]


def _microseconds(at: str | None) -> int | None:
    try:
        return None if at is None else to_microseconds(datetime.fromisoformat(at))
    except ValueError:  # edited by hand: infinity, or the year 10,000
        return None


def _end(record: Record, details: Details) -> str:
    """Return how an event ended, and where its destination has it."""
    facts = receipts.read(details.receipt)
    if record.state != State.DONE or not facts:
        return record.state
    by = f"sent by {facts['by']}" if "by" in facts else ""
    return f"done: {', '.join(part for part in (by, place(facts)) if part)}"


def place(facts: Mapping[str, Any]) -> str:
    """Return a receipt's place in words."""
    match facts.get("to"):
        case "kafka":
            known = [n for n in ("partition", "offset") if n in facts]
            where = [f"Kafka topic {facts.get('topic')}", *(f"{n} {facts[n]}" for n in known)]
            return f"confirmed in {', '.join(where)}"
        case "rabbitmq":
            exchange = facts.get("exchange") or "(default)"
            key = facts.get("routing_key")
            return f"confirmed by RabbitMQ exchange {exchange}, routing key {key}"
        case "handlers" | "modules" as kind:
            names = facts.get(kind)
            listed = ", ".join(names) if isinstance(names, list) else str(names)
            return f"committed by {kind} {listed}" if listed else ""
        case None:
            return ""
        case other:
            more = [f"{n} {v}" for n, v in facts.items() if n not in ("by", "to")]
            return f"confirmed by {' '.join([str(other), ', '.join(more)]).strip()}"


def _arrival(one: Mapping[str, Any]) -> str:
    store, consumer, state = one["store"], one["consumer"], one["state"]
    if "error" in one:
        return f"unknown whether {store} received it: {one['error']}"
    if consumer is None:
        return f"not received by {store}: no inbox row, or it was pruned"
    if one.get("stored"):
        return f"stored in the durable inbox of {consumer} ({store}): {state}"
    handled = "" if state == "done" else ", not handled yet"
    return f"received by inbox {consumer} ({store}){handled}"


def _told(found: history.History) -> Iterator[tuple[int, str]]:
    """Yield the entries of a history, and the number of those left out at their place."""
    for place, entry in enumerate(found.entries):
        if place == history.FIRST and found.dropped:
            yield found.entries[place - 1]["at"], f"… {found.dropped:,} more, left out"
        yield entry["at"], _entry_text(entry)


def _entry_text(entry: dict[str, Any]) -> str:
    by, number = entry.get("by"), entry.get("attempt")
    if number is None:
        said = f"{entry['what']} by {by}" if by else entry["what"]
    else:
        who = f" by {by}" if by else ""
        said = f"attempt {number}{who}: {entry['what']}"
    return f"{said}: {entry['error']}" if entry.get("error") else said


def _when(moment: tuple[Any, str]) -> tuple[bool, Any]:
    us, _ = moment
    return (False, us) if isinstance(us, int) else (True, str(us))
