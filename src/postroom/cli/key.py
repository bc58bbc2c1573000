"""`postroom key`: the whole sequence of one key: what went, what blocks it, what waits behind."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator

import click

from postroom.admin.key_sequence import SCAN_LIMIT, KeySequence, sequence_facts, sequences
from postroom.admin.texts import cut, instant, many, one_line
from postroom.cli.options import json_option, opened, print_json, shared_store, store_option
from postroom.errors import NotFoundError
from postroom.model.url import Url
from postroom.search import Outline


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
        print_json({"key": key, "sequences": [sequence_facts(one, limit) for one in found]})
        return
    lines: list[str] = []
    for one in found:
        lines += [*([""] if lines else []), *_render(key, one, limit)]
    click.echo("\n".join(lines))


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
        for one in last:
            yield from _event(one.settled_us, one)
    if not found.waiting:
        yield "  nothing waits"
        return
    head, behind = found.waiting[0], found.waiting[1:]
    yield "  blocked by its head:" if found.barrier is not None else "  next:"
    yield from _event(head.created_us, head)
    if head.attempts or head.last_error:
        due = f", next attempt {instant(head.next_attempt_us)}" if head.next_attempt_us else ""
        yield f"    {many(head.attempts, 'attempt')}{due}"
    if head.last_error:
        yield f"    {cut(head.last_error, 76)}"
    if behind:
        first = behind[:limit]
        more = f"; the first {len(first)}:" if len(first) < len(behind) else ":"
        yield f"  behind it: {many(len(behind), 'event')}{more}"
        for one in first:
            yield from _event(one.created_us, one)


def _event(at_us: int | None, one: Outline) -> Iterator[str]:
    """Yield the lines of an event. Its id is whole: it is there to be copied."""
    start = f"    {(instant(at_us) or '')[:19]:<19} {one_line(one.state):<10} "
    end = f"{cut(one.type, 18):<18} {one_line(one.id)}"
    if len(start) + len(end) <= shutil.get_terminal_size().columns:
        yield start + end
    else:
        yield start + cut(one.type, 80 - len(start))
        yield f"      {one_line(one.id)}"
