"""`postroom edit`: sends a dead letter with changes, under a new id."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import (
    by_option,
    dry_run_option,
    json_option,
    opened,
    print_json,
    shared_store,
    store_option,
    whoami,
)
from postroom.cli.selection import whole_id
from postroom.commands import Edit
from postroom.engine.lock_retries import past_locks
from postroom.errors import ConfigError
from postroom.event import new_id
from postroom.model.codec import JSON
from postroom.model.url import Url
from postroom.record import Record
from postroom.stores.edits import check_editable, edited

_RESERVED = "postroom-"
_MAX_FILE_BYTES = 16_000_000


@click.command(short_help="Send a dead letter with changes.")
@click.argument("event_id", metavar="ID")
@store_option
@click.option(
    "--payload-file",
    type=click.Path(path_type=Path, allow_dash=True, dir_okay=False),
    metavar="FILE",
    help="Send the content of this file as the payload; - reads stdin.",
)
@click.option("--content-type", metavar="TYPE", help="Set the content type.")
@click.option("--tombstone", is_flag=True, help="Send no value (needs a key).")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a header; can be repeated.",
)
@click.option(
    "--drop-header",
    "dropped",
    multiple=True,
    metavar="NAME",
    help="Drop a header; can be repeated.",
)
@by_option
@dry_run_option
@json_option
def edit(
    event_id: str,
    store: Url,
    payload_file: Path | None,
    content_type: str | None,
    tombstone: bool,
    headers: Sequence[str],
    dropped: Sequence[str],
    by: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Send a dead letter with changes, under a new id.

    Payload, headers and content type are checked as by `add`. The dead letter stays, marked as
    replaced, and can be neither replayed nor edited again. Without an option that changes
    something, $EDITOR opens headers and JSON payload.

    \b
    Examples:
      postroom edit order-created-42
      postroom edit order-created-42 --payload-file fixed.json
      postroom edit order-created-42 --header tenant=north --drop-header x-debug
    """  # noqa: D301 - click knows the sign
    given = bool(payload_file or content_type is not None or tombstone or headers or dropped)
    if not given and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "Nothing to change: give --payload-file, --header, --drop-header, --content-type or "
            "--tombstone (an editor needs a terminal)."
        )
    payload = None if payload_file is None else _read(payload_file)
    set_to = dict(map(_pair, headers))

    record = asyncio.run(_dead_letter(store, event_id))
    event_id = record.id
    if given:
        changed = _with_headers(record, set_to, dropped) if set_to or dropped else None
        changes = Edit(payload, content_type, changed, tombstone)
    else:
        changes = _in_editor(record)
    edited(record, changes, new_id())  # refused here as the store would refuse it
    sent_as = None if dry_run else asyncio.run(_send(store, event_id, changes, whoami(by)))
    if as_json:
        print_json({"id": event_id, "sent_as": sent_as, "dry_run": dry_run})
    elif sent_as is None:
        click.echo(f"would send {event_id} with these changes; nothing was changed")
    else:
        click.echo(f"sent as {sent_as}; {event_id} stays a dead letter, marked as replaced")
    return ExitCode.OK


async def _dead_letter(url: Url, event_id: str) -> Record:
    async with opened(shared_store(url)) as store:
        event_id = await whole_id(store, event_id)
        there = (await store.look_up([event_id])).get(event_id)
        replaced_by = None if there is None else there.replaced_by
        return check_editable(event_id, await store.get(event_id), replaced_by)


async def _send(url: Url, event_id: str, changes: Edit, who: str) -> str:
    async with opened(shared_store(url)) as store:
        return await past_locks(lambda: store.edit(event_id, changes, by=who))


def _with_headers(
    record: Record, set_to: Mapping[str, str], dropped: Sequence[str]
) -> dict[str, str]:
    own = _own_headers(record)
    for name in dropped:
        if name not in own:
            raise ConfigError(f"event {record.id!r} has no header {name!r} to drop")
    return {name: value for name, value in own.items() if name not in dropped} | dict(set_to)


def _own_headers(record: Record) -> dict[str, str]:
    """Return the application's headers."""
    return {n: v for n, v in record.headers.items() if not n.lower().startswith(_RESERVED)}


def _read(path: Path) -> bytes:
    try:
        with click.open_file(str(path), "rb") as file:
            return bytes(file.read(_MAX_FILE_BYTES))
    except OSError as error:
        raise ConfigError(f"--payload-file: cannot read {path}: {error.strerror}") from error


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise click.UsageError(f"--header {text!r} must be NAME=VALUE.")
    return name, value


# -- with an editor ---------------------------------------------------------------------------
def _in_editor(record: Record) -> Edit:
    """Let a person change headers and payload; a payload that is not JSON is left out."""
    before: dict[str, Any] = {
        "content_type": record.content_type, "headers": _own_headers(record),
    }  # fmt: skip
    if record.content_type == JSON and not record.tombstone:
        before["payload"] = record.data
    text = json.dumps(before, indent=2, ensure_ascii=False)
    answer = click.edit(text, extension=".json")
    after = before if answer is None else _parsed(answer)
    if after.keys() != before.keys():
        raise ConfigError(f"the fields must be {', '.join(before)}; nothing was sent")
    if after == before:
        raise ConfigError("nothing was changed; to send the same again: postroom replay --new-id")
    changes = {name: after[name] for name in before if after[name] != before[name]}
    headers = changes.get("headers", before["headers"])
    content_type = changes.get("content_type", record.content_type)
    if not isinstance(headers, Mapping) or not isinstance(content_type, str):
        raise ConfigError("headers must be an object of texts, content_type must be text")
    payload = None
    if "payload" in changes:
        payload = json.dumps(changes["payload"], ensure_ascii=False).encode(errors="surrogatepass")
    return Edit(payload, content_type, headers)


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}; nothing was sent") from error
    if not isinstance(found, dict):
        raise ConfigError("must be a JSON object with headers, content_type and payload")
    return found
