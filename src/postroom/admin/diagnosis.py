"""The doctor's look at a store and the relays that serve it: findings with reason and fix."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping

from postroom.admin.inbox_diagnosis import judge_inboxes
from postroom.admin.texts import many
from postroom.lookup import Stats
from postroom.model.clock import host_microseconds
from postroom.model.diagnostics import Finding
from postroom.record import LANES, State
from postroom.settings import RelaySettings
from postroom.store import Membership, Store

_LONG_POLL_SECONDS = 10.0


async def check_schema(store: Store, url: object) -> AsyncIterator[Finding]:
    """Check that the tables have the version this postroom needs."""
    there = await store.schema()
    if there.current < there.newest:
        what = f"have version {there.current}" if there.current else "are missing"
        yield Finding(
            "error",
            f"the tables {what}; this postroom needs version {there.newest}",
            "no relay starts and no event is delivered",
            f"postroom migrate --store {url}",
        )
    elif there.current > there.newest:
        yield Finding(
            "error",
            f"the tables have version {there.current}; this postroom knows {there.newest}",
            "relays of this postroom version do not start",
            "upgrade postroom on this machine",
        )


async def diagnose(
    store: Store, settings: Mapping[str, RelaySettings], keep_seconds: float
) -> list[Finding]:
    """Return the findings about an open store, its relays and its inboxes.

    settings        of the streams whose relays are configured here
    keep_seconds    the longest retention of inbox rows
    """
    found = list(await store.check())
    found += [finding async for finding in check_relays(store, settings)]
    found += judge_inboxes(await store.inboxes(), keep_seconds, host_microseconds())
    return found


async def check_relays(
    store: Store, settings: Mapping[str, RelaySettings]
) -> AsyncIterator[Finding]:
    """Check the relays and lanes of each stream."""
    for stream in await store.streams():
        stats, membership = await store.stats(stream), await store.leases(stream)
        chosen = settings.get(stream, RelaySettings())
        for finding in judge_stream(stream, stats, membership, chosen):
            yield finding
    for chosen in settings.values():
        for finding in judge_poll(chosen, hears=store.capabilities.notify):
            yield finding


def judge_poll(settings: RelaySettings, *, hears: bool) -> Iterator[Finding]:
    """Check the poll interval: without notifications, events wait for the next poll."""
    if not hears and settings.poll_seconds > _LONG_POLL_SECONDS:
        yield Finding(
            "warning",
            f"relays of stream {settings.stream} poll every {settings.poll_seconds:g} s",
            "this store has no notifications of commits: an event can wait for a whole interval",
            "set a smaller --poll-seconds; an idle poll is one cheap query",
        )


def judge_stream(
    stream: str, stats: Stats, membership: Membership, settings: RelaySettings
) -> Iterator[Finding]:
    """Check one stream and the relays that serve it."""
    alive = {member.owner: member for member in membership.members}
    held = [lease for lease in membership.leases if lease.live and lease.owner]
    unfinished = sum(stats.counts[s] for s in (State.PENDING, State.PROCESSING, State.FAILED))
    if unfinished and not alive:
        yield Finding(
            "error",
            f"{many(unfinished, 'event')} to be sent in stream {stream}, and no relay serves it",
            "no event of this stream is delivered",
            f"postroom run --stream {stream} --broker …, and check why the previous relay stopped",
        )
    orphans = sum(lease.owner not in alive for lease in held)
    if orphans:
        yield Finding(
            "warning",
            f"{many(orphans, 'lane')} of stream {stream} leased by a relay without a heartbeat",
            "their events wait until the lease expires; then another relay takes over",
            f"wait: the lease expires within {settings.lease_seconds:g} s",
        )
    if alive and len(held) < LANES and not orphans:
        yield Finding(
            "warning",
            f"{many(LANES - len(held), 'lane')} of stream {stream} without an owner",
            "their events wait; a relay that has just started takes them within seconds",
            "run doctor again; if the finding stays, check the relays' log",
        )
    for name, number in Counter(m.name for m in membership.members if m.name).items():
        if number > 1:
            yield Finding(
                "warning",
                f"{number} relays of stream {stream} are named {name!r}",
                "`status` and alerts cannot tell them apart; deliveries are not affected",
                "give each relay its own --name, or omit it",
            )
    unhealthy = [member.name or member.owner for member in membership.members if not member.healthy]
    if unhealthy:
        yield Finding(
            "warning",
            f"{'relay' if len(unhealthy) == 1 else 'relays'} {', '.join(unhealthy)} of stream "
            f"{stream} {'is' if len(unhealthy) == 1 else 'are'} unhealthy",
            "the destination is unreachable, work is stuck, or the relay is stopping; events wait "
            "and use no attempts while the destination is unreachable",
            "check the broker, and `breaker` in the relay's log",
        )
    patience = max(60.0, 10 * settings.poll_seconds)
    if alive and stats.lag_seconds > patience:
        yield Finding(
            "warning",
            f"the oldest event due in stream {stream} is {stats.lag_seconds:,.0f} s old",
            "the relays do not keep up, or their destination does not answer",
            "postroom status --watch 2; add relays, or a larger --max-batch-size",
        )
    if stats.counts[State.DEAD]:
        yield Finding(
            "warning",
            f"{many(stats.counts[State.DEAD], 'dead letter')} in stream {stream}",
            "these events will not be retried",
            "postroom dead, then postroom replay --group …",
        )
    if stats.blocked_keys:
        yield Finding(
            "info",
            f"{many(stats.blocked_keys, 'key')} of stream {stream} blocked by a failed event",
            "later events of these keys wait until it is delivered or buried",
            "postroom list --state failed",
        )
    if 0 < settings.keep_done_seconds < 3_600:
        yield Finding(
            "info",
            f"done events of stream {stream} are kept for only {settings.keep_done_seconds:g} s",
            "after that, an event id that is added again is not detected as a duplicate",
            "set keep_done_seconds above the time in which a producer may retry",
        )
