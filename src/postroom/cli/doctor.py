"""`postroom doctor`: what is wrong, why it matters, and what to do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import click

from postroom.cli.configuration import RelayPlan, Setting
from postroom.cli.doctor_brokers import check_broker, check_source, refuse_code
from postroom.cli.exit_codes import ExitCode, one_line
from postroom.cli.options import (
    json_option,
    many,
    mode_of,
    print_json,
    reaching,
    shared_store,
    store_option,
)
from postroom.model.diagnostics import Finding
from postroom.model.url import Url
from postroom.record import LANES, State
from postroom.settings import RelaySettings
from postroom.store import Filter, Membership, Stats, Store

_SIGNS = {"error": "ERROR  ", "warning": "warning", "info": "info   "}
_LONG_POLL_SECONDS = 10.0
_ORDER = {"error": 0, "warning": 1, "info": 2}


@click.command(short_help="Say what is wrong, why it matters, what to do.")
@store_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, store: Url, as_json: bool) -> int:
    """Look for what is wrong, or will be: each finding says why it matters and what to do.

    Looks at the store and the rights there, at the relays that serve it, and at the brokers and
    sources of the configuration (POSTROOM_BROKER, postroom.toml). Changes nothing, and runs no code
    that only a file in the current folder asks for: handlers and plugins are checked if --config or
    a variable names them. Exit code 1 if there is an error; 0 with warnings.

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
        click.echo(f"{store}: nothing to worry about")
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
            found += await store.check()
            found += [finding async for finding in check_relays(store, plans)]
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


async def _topics(store: Store, stream: str) -> set[str]:
    """Return the topics of some events that are kept: enough to look at."""
    return {record.topic for record in await store.find(Filter(stream=stream, limit=200))}


# -- the store --------------------------------------------------------------------------------
async def check_schema(store: Store, url: Url) -> AsyncIterator[Finding]:
    """The tables are those that this code knows."""
    there = await store.schema()
    if there.current < there.newest:
        what = f"are of version {there.current}" if there.current else "are missing"
        yield Finding(
            "error",
            f"the tables {what}; this postroom needs version {there.newest}",
            "no relay starts, and nothing is delivered",
            f"postroom migrate --store {url}",
        )
    elif there.current > there.newest:
        yield Finding(
            "error",
            f"the tables are of version {there.current}; this postroom knows {there.newest}",
            "no relay of this version starts",
            "install the newer postroom here too",
        )


async def check_relays(store: Store, plans: list[RelayPlan]) -> AsyncIterator[Finding]:
    """Look at each stream as its relays see it."""
    settings = {plan.settings.stream: plan.settings for plan in plans}
    for stream in await store.streams():
        stats, membership = await store.stats(stream), await store.leases(stream)
        chosen = settings.get(stream, RelaySettings())
        for finding in judge_stream(stream, stats, membership, chosen):
            yield finding
    for chosen in settings.values():
        for finding in judge_poll(chosen, hears=store.capabilities.notify):
            yield finding


def judge_poll(settings: RelaySettings, *, hears: bool) -> Iterator[Finding]:
    """Where a store does not tell of commits, an event waits for the next look at it."""
    if not hears and settings.poll_seconds > _LONG_POLL_SECONDS:
        yield Finding(
            "warning",
            f"relays of stream {settings.stream} look every {settings.poll_seconds:g} s",
            "this store does not tell them of commits in other processes: events wait so long",
            "a smaller --poll-seconds; an idle look is one cheap question",
        )


def judge_stream(
    stream: str, stats: Stats, membership: Membership, settings: RelaySettings
) -> Iterator[Finding]:
    """Say what is odd about a stream and those who serve it."""
    alive = {member.owner: member for member in membership.members}
    held = [lease for lease in membership.leases if lease.live and lease.owner]
    unfinished = sum(stats.counts[s] for s in (State.PENDING, State.PROCESSING, State.FAILED))
    if unfinished and not alive:
        yield Finding(
            "error",
            f"{many(unfinished, 'event')} to be sent in stream {stream}, and no relay serves it",
            "nothing is delivered",
            f"postroom run --stream {stream} --broker …, and see what became of the one that ran",
        )
    orphans = sum(lease.owner not in alive for lease in held)
    if orphans:
        yield Finding(
            "warning",
            f"{many(orphans, 'lane')} of stream {stream} leased by a relay without a sign of life",
            "their events wait until the lease runs out; then another relay takes them",
            f"nothing, if it is gone: at most {settings.lease_seconds:g} s",
        )
    if alive and len(held) < LANES and not orphans:
        yield Finding(
            "warning",
            f"{many(LANES - len(held), 'lane')} of stream {stream} without an owner",
            "their events wait; a relay that has just started takes them within a moment",
            "look again; if it stays so, see the log of the relays",
        )
    for name, number in Counter(m.name for m in membership.members if m.name).items():
        if number > 1:
            yield Finding(
                "warning",
                f"{number} relays of stream {stream} are named {name!r}",
                "`status` and alerts cannot tell them apart; deliveries are safe all the same",
                "give each its own --name, or leave it out",
            )
    unhealthy = [member.name or member.owner for member in membership.members if not member.healthy]
    if unhealthy:
        yield Finding(
            "warning",
            f"the destination of stream {stream} is away for {', '.join(unhealthy)}",
            "events wait and spend no attempts; they go out when it is back",
            "see the broker, and `breaker` in the relay's log; one that is stopping shows up, too",
        )
    patience = max(60.0, 10 * settings.poll_seconds)
    if alive and stats.lag_seconds > patience:
        yield Finding(
            "warning",
            f"the oldest event of stream {stream} that could go is {stats.lag_seconds:,.0f} s old",
            "the relays do not keep up, or their destination does not answer",
            "postroom status --watch 2; add relays, or a larger --max-batch-size",
        )
    if stats.counts[State.DEAD]:
        yield Finding(
            "warning",
            f"{many(stats.counts[State.DEAD], 'dead letter')} in stream {stream}",
            "these events were given up: nobody will see them",
            "postroom dead, then postroom replay --group …",
        )
    if stats.blocked_keys:
        yield Finding(
            "info",
            f"{many(stats.blocked_keys, 'key')} of stream {stream} blocked by a failed event",
            "the events of these keys go on when it has been delivered or buried",
            "postroom list --state failed",
        )
    if 0 < settings.keep_done_seconds < 3_600:
        yield Finding(
            "info",
            f"done events of stream {stream} are kept for {settings.keep_done_seconds:g} s only",
            "an event id that is added again later is not refused any more as a duplicate",
            "keep_done_seconds above the time in which a producer may try again",
        )


def _lines(finding: Finding) -> list[str]:
    return [
        f"{_SIGNS[finding.level]}  {one_line(finding.what)}",
        *click.wrap_text(one_line(f"why: {finding.why}"), 80, " " * 9, " " * 14).splitlines(),
        *click.wrap_text(one_line(f"fix: {finding.fix}"), 80, " " * 9, " " * 14).splitlines(),
    ]
