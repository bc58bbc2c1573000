"""`postroom key`: the whole sequence of one key: what went, what blocks it, what waits behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import click

from postroom.cli.exit_codes import one_line
from postroom.cli.list_events import cut, instant
from postroom.cli.options import (
    json_option,
    many,
    opened,
    print_json,
    shared_store,
    store_option,
)
from postroom.errors import NotFoundError
from postroom.lookup import Filter
from postroom.model.url import Url
from postroom.record import Stage
from postroom.search import Outline
from postroom.store import Store

SCAN_LIMIT = 10_000


class KeySequence(NamedTuple):
    """The events of a key in one stream, with one aggregate type: one order.

    went        finished events, oldest first
    waiting     the others, oldest first; the first one is the head
    barrier     set if the key is blocked: events after this `seq` wait
    is_whole    whether all its events were looked at
    """

    stream: str
    aggregate_type: str | None
    went: tuple[Outline, ...]
    waiting: tuple[Outline, ...]
    barrier: int | None
    is_whole: bool


@click.command(short_help="Show the sequence of one key.")
@click.argument("key", metavar="KEY")
@store_option
@click.option("--stream", help="Only this stream.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Maximum events to show of those that went, and of those that wait.",
)
@click.option(
    "--scan-limit",
    type=click.IntRange(min=1),
    default=SCAN_LIMIT,
    show_default=True,
    help="Maximum events to look at, from the newest.",
)
@json_option
def key(
    key: str, store: Url, stream: str | None, limit: int, scan_limit: int, as_json: bool
) -> None:
    """Show the sequence of one key: what went, what blocks it, what waits behind it.

    A key has one sequence for each stream and aggregate type. The newest --scan-limit events are
    looked at, by the index of keys; the head of a blocked key is always found.

    \b
    Examples:
      postroom key order-42
      postroom key order-42 --stream orders --limit 50 --json
    """  # noqa: D301 - click knows the sign
    asyncio.run(_show(store, key, stream, limit, scan_limit, as_json=as_json))


async def _show(
    url: Url, key: str, stream: str | None, limit: int, scan_limit: int, *, as_json: bool
) -> None:
    async with opened(shared_store(url)) as store:
        found = await sequences(store, key, stream, scan_limit)
    if not found:
        where = f" in stream {stream!r}" if stream is not None else ""
        raise NotFoundError(f"no event of key {key!r}{where} in {url}; see: postroom list")
    if as_json:
        print_json({"key": key, "sequences": [_facts(one, limit) for one in found]})
        return
    lines: list[str] = []
    for one in found:
        lines += [*([""] if lines else []), *_render(key, one, limit)]
    click.echo("\n".join(lines))


async def sequences(
    store: Store, key: str, stream: str | None, scan_limit: int
) -> list[KeySequence]:
    """Return the sequences of a key, by stream and aggregate type."""
    newest = await store.search.outline("key", key, scan_limit)
    groups: dict[tuple[str, str], list[Outline]] = {}
    for one in reversed(newest):
        if stream in (None, one.stream):
            groups.setdefault((one.stream, one.aggregate_type or ""), []).append(one)
    is_whole = len(newest) < scan_limit
    return [
        await _sequence(store, key, rows, is_whole=is_whole) for _, rows in sorted(groups.items())
    ]


async def _sequence(
    store: Store, key: str, rows: Sequence[Outline], *, is_whole: bool
) -> KeySequence:
    waiting = [one for one in rows if one.stage != Stage.OVER]
    barrier = None
    if waiting:
        details = await store.details(waiting[0].id)
        barrier = None if details is None else details.barrier
        if barrier is not None and barrier < waiting[0].seq:  # the head is older than all of these
            place = Filter(
                key=key, stream=rows[0].stream, after_seq=barrier - 1, until_seq=barrier, limit=1
            )
            head = await store.search.outlines([one.id for one in await store.find(place)])
            waiting = [*(one for one in head if one.stage != Stage.OVER), *waiting]
    return KeySequence(
        rows[0].stream,
        rows[0].aggregate_type,
        tuple(one for one in rows if one.stage == Stage.OVER),
        tuple(waiting),
        barrier,
        is_whole,
    )


def _facts(found: KeySequence, limit: int) -> dict[str, Any]:
    went, waiting = found.went, found.waiting
    return {
        "stream": found.stream,
        "aggregate_type": found.aggregate_type,
        "went": {
            "counts": dict(sorted(Counter(one.state for one in went).items())),
            "last": [outline_facts(one) for one in went[-limit:]],
        },
        "blocked_after": None if found.barrier is None else str(found.barrier),
        "head": outline_facts(waiting[0]) if waiting else None,
        "behind": {
            "count": len(waiting[1:]),
            "first": [outline_facts(one) for one in waiting[1 : 1 + limit]],
        },
        "complete": found.is_whole,
    }


def outline_facts(one: Outline) -> dict[str, Any]:
    """Return an event without its payload, for JSON."""
    return {
        "seq": str(one.seq),
        "id": one.id,
        "state": one.state,
        "stage": one.stage,
        "type": one.type,
        "topic": one.topic,
        "attempts": one.attempts,
        "created_at": instant(one.created_us),
        "next_attempt_at": instant(one.next_attempt_us),
        "settled_at": instant(one.settled_us),
        "last_error": one.last_error,
    }


def _render(key: str, found: KeySequence, limit: int) -> Iterator[str]:
    kind = f", aggregate type {cut(found.aggregate_type, 30)}" if found.aggregate_type else ""
    yield cut(f"key {key} in stream {found.stream}{kind}", 80)
    if not found.is_whole:
        yield "  older events were not looked at: --scan-limit"
    if found.went:
        counts = Counter(one.state for one in found.went)
        told = ", ".join(f"{number:,} {state}" for state, number in sorted(counts.items()))
        last = found.went[-limit:]
        more = f"; the last {len(last)}:" if len(last) < len(found.went) else ":"
        yield f"  went: {told}{more}"
        yield from (_line(one.settled_us, one) for one in last)
    if not found.waiting:
        yield "  nothing waits"
        return
    head, behind = found.waiting[0], found.waiting[1:]
    yield "  blocked by its head:" if found.barrier is not None else "  next:"
    yield _line(head.created_us, head)
    if head.attempts or head.last_error:
        due = f", next attempt {instant(head.next_attempt_us)}" if head.next_attempt_us else ""
        yield f"    {many(head.attempts, 'attempt')}{due}"
    if head.last_error:
        yield f"    {cut(head.last_error, 76)}"
    if behind:
        first = behind[:limit]
        more = f"; the first {len(first)}:" if len(first) < len(behind) else ":"
        yield f"  behind it: {many(len(behind), 'event')}{more}"
        yield from (_line(one.created_us, one) for one in first)


def _line(at_us: int | None, one: Outline) -> str:
    at = (instant(at_us) or "")[:19]
    named = f"{one_line(one.state):<10} {cut(one.type, 18):<18} {cut(one.id, 26)}"
    return f"    {at:<19} {named}".rstrip()
