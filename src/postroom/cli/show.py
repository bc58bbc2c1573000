"""`postroom show`: one event in full."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import click

from postroom.admin.event_facts import MOST_LEVELS, describe, lane_of
from postroom.admin.texts import one_line
from postroom.admin.timeline import arrivals
from postroom.cli.options import json_option, opened, print_json, shared_store, store_option
from postroom.cli.selection import whole_id
from postroom.errors import ConfigError, NotFoundError, PostroomError
from postroom.model.url import Url
from postroom.record import short_error

_HEX_BYTES = 4_096
_COLUMNS = 80


def read_inboxes(
    ctx: click.Context, param: click.Parameter, values: Sequence[str]
) -> tuple[Url, ...]:
    """Read the URLs of receiving stores."""
    try:
        return tuple(Url.parse(value) for value in values)
    except ConfigError as error:  # it does not repeat the URL, which may have a password
        raise click.BadParameter(f"{error}.", ctx, param) from error


@click.command(short_help="Show one event in full.")
@click.argument("event_id", metavar="ID")
@store_option
@click.option(
    "--inbox",
    "inboxes",
    multiple=True,
    callback=read_inboxes,
    metavar="URL",
    help="Database of a receiving service, whose inbox is searched; repeatable.",
)
@json_option
def show(event_id: str, store: Url, inboxes: tuple[Url, ...], as_json: bool) -> None:
    """Show one event in full: payload, timeline, last error, lease.

    The timeline tells when the event was added, its failed attempts and operators' commands (the
    first 3 and the last 5), which relay sent it, where the destination confirmed it, and with
    --inbox which consumers received it. Tracebacks of handlers follow the payload.

    Of a payload that is not JSON, the first 4,096 bytes are shown in hexadecimal; --json prints all
    of it. A row that is not a valid event is shown as far as possible; `flaw` names the reason.

    \b
    Examples:
      postroom show order-created-42
      postroom show order-created-42 --inbox postgresql://payments-db/app
      postroom show 0199c1a0-7f3e-7aaa-8d43-0c2f5be1d9aa --json
    """  # noqa: D301 - click knows the sign
    facts = asyncio.run(_ask(store, inboxes, event_id))
    if as_json:
        print_json(facts)
    else:
        click.echo("\n".join(render(facts)))


async def look_for(url: Url, event_id: str) -> list[dict[str, Any]]:
    """Return which consumers of a store have received an event.

    A store that does not answer costs only its own answer.
    """
    try:
        async with opened(shared_store(url)) as store:
            return await arrivals(store, url, event_id)
    except (PostroomError, OSError) as error:
        facts: dict[str, Any] = {"store": str(url), "consumer": None, "at": None, "state": None}
        return [{**facts, "error": short_error(error)}]


async def _ask(url: Url, inboxes: Sequence[Url], event_id: str) -> dict[str, Any]:
    async with opened(shared_store(url)) as store:
        event_id = await whole_id(store, event_id)
        record, details = await store.get(event_id), await store.details(event_id)
        if record is None or details is None:
            raise NotFoundError(f"no event with id {event_id!r} in {url}; see: postroom list")
        lane = await lane_of(store, record)
    received = [one for inbox in inboxes for one in await look_for(inbox, event_id)]
    return describe(record, details, lane, received)


def render(facts: dict[str, Any]) -> list[str]:
    """Return the lines of the text output."""
    hidden = {
        "payload", "timeline", "headers", "causation_path", "blocked_after", "history",
        "receipt", "received",
    }  # fmt: skip
    width = max(len(name) for name in facts)
    told = {name: value for name, value in facts.items() if name not in hidden}
    if facts["blocked_after"] is not None:
        told["blocked"] = f"events of this key after seq {facts['blocked_after']} wait"
    if facts["causation_path"]:
        steps = [f"{module}/{kind}" for module, kind in facts["causation_path"]]
        told["causation_path"] = " > ".join(steps)
    lines: list[str] = []
    for name, value in told.items():
        if value is not None:
            lines += _wrapped(f"{name:<{width}}  ", one_line(str(value)))
    lines += [f"header  {one_line(n)}: {one_line(v)}" for n, v in facts["headers"].items()]
    lines.append("")
    for moment in facts["timeline"]:
        lines += _wrapped(f"{moment['at'] or '-':<28} ", one_line(moment["what"]))
    lines += ["", *_shown(facts["payload"])]
    attempts: dict[str, list[str]] = {}  # a traceback that repeats is shown once
    for entry in facts["history"]["entries"]:
        if text := entry.get("traceback"):
            attempts.setdefault(text, []).append(str(entry.get("attempt")))
    for text, numbers in attempts.items():
        frames = ["".join(map(_readable, line)) for line in text.split("\n")]
        noun = "attempt" if len(numbers) == 1 else "attempts"
        lines += ["", f"traceback of {noun} {', '.join(numbers)}:", *frames]
    return lines


def _wrapped(start: str, text: str) -> list[str]:
    return click.wrap_text(text, _COLUMNS, start, " " * len(start)).splitlines()


def _shown(payload: dict[str, Any]) -> list[str]:
    if "json" in payload:
        text = json.dumps(payload["json"], indent=2, ensure_ascii=False)
        return ["".join(map(_readable, line)) for line in text.split("\n")]
    if "text" in payload:
        text = "".join(map(_readable, payload["text"]))
        return [f"JSON, nested deeper than {MOST_LEVELS} levels:", text]
    text = payload["hex"]
    rows = [text[n : n + 64] for n in range(0, min(len(text), 2 * _HEX_BYTES), 64)]
    more = len(text) // 2 - _HEX_BYTES
    return [*rows, f"… and {more:,} bytes"] if more > 0 else rows


def _readable(character: str) -> str:
    """Return a character of a JSON text, escaped if it is not printable."""
    if character.isprintable():
        return character
    return json.dumps(character)[1:-1]
