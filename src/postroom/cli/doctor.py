"""`postroom doctor`: findings with their reason and fix."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from postroom.admin.diagnosis import check_schema, diagnose
from postroom.admin.texts import one_line
from postroom.cli.configuration import RelayPlan, Setting
from postroom.cli.doctor_brokers import check_broker, check_source, refuse_code
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import (
    json_option,
    mode_of,
    print_json,
    reaching,
    shared_store,
    store_option,
)
from postroom.lookup import Filter
from postroom.model.diagnostics import Finding
from postroom.model.url import Url
from postroom.settings import RelaySettings
from postroom.store import Store

_SIGNS = {"error": "ERROR  ", "warning": "warning", "info": "info   "}
_LONG_POLL_SECONDS = 10.0
_ORDER = {"error": 0, "warning": 1, "info": 2}


@click.command(short_help="Check store, relays and brokers; suggest fixes.")
@store_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, store: Url, as_json: bool) -> int:
    """Check store, relays, brokers and sources; each finding has a reason and a fix.

    Checks the store and its permissions, the relays that serve it, and the configured brokers and
    sources (POSTROOM_BROKER, postroom.toml). Changes nothing. Handlers and plugins run code, so
    they are checked only if --config or an environment variable names them, not if a file in the
    current folder does. Exit code 1 if there is an error, 0 with warnings only.

    \b
    Examples:
      postroom doctor
      postroom --config postroom.toml doctor
      postroom doctor --store postgresql://app@db/shop --json
    """  # noqa: D301 - click knows the sign
    mode = mode_of(ctx)
    plans, consumers = mode.configuration.relays({}), mode.configuration.consumers
    found = asyncio.run(_examine(store, plans, consumers, mode.unnamed_file))
    found.sort(key=lambda finding: _ORDER[finding.level])
    if as_json:
        for finding in found:
            print_json(finding._asdict(), lines=True)
    elif found:
        click.echo("\n\n".join("\n".join(_lines(finding)) for finding in found))
    else:
        click.echo(f"{store}: no problems found")
    return ExitCode.BROKEN if any(f.level == "error" for f in found) else ExitCode.OK


async def _examine(
    url: Url,
    plans: list[RelayPlan],
    consumers: Sequence[Mapping[str, Setting]],
    unnamed_file: Path | None,
) -> list[Finding]:
    store = shared_store(url)
    topics: dict[str, set[str]] = {}
    with reaching(store):
        found = [finding async for finding in check_schema(store, url)]
    if not found:
        try:
            await store.open()
            settings = {plan.settings.stream: plan.settings for plan in plans}
            found += await diagnose(store, settings, retention(plans, consumers))
            topics = {p.settings.stream: await _topics(store, p.settings.stream) for p in plans}
        finally:
            await store.close()
    for plan in plans:
        if refused := refuse_code(plan.values["broker"], unnamed_file):
            found.append(refused)
        elif plan.broker is not None:
            stream = plan.settings.stream
            found += await check_broker(plan.broker, plan.settings, topics.get(stream, ()))
    for section in consumers:
        refused = refuse_code(section["source"], unnamed_file)
        found += [refused] if refused else await check_source(section)
    return list(dict.fromkeys(found))


def retention(plans: Iterable[RelayPlan], consumers: Iterable[Mapping[str, Setting]]) -> float:
    """Return the longest time for which a relay or consumer of the configuration keeps rows."""
    kept = [plan.settings.dedup_seconds for plan in plans]
    kept += [float(section["dedup_seconds"].value) for section in consumers]
    return max(kept, default=RelaySettings().dedup_seconds)


async def _topics(store: Store, stream: str) -> set[str]:
    """Return the topics of a sample of stored events."""
    return {record.topic for record in await store.find(Filter(stream=stream, limit=200))}


def _lines(finding: Finding) -> list[str]:
    return [
        *click.wrap_text(
            f"{_SIGNS[finding.level]}  {one_line(finding.what)}", 80, "", " " * 9
        ).splitlines(),
        *click.wrap_text(one_line(f"why: {finding.why}"), 80, " " * 9, " " * 14).splitlines(),
        *click.wrap_text(one_line(f"fix: {finding.fix}"), 80, " " * 9, " " * 14).splitlines(),
    ]
