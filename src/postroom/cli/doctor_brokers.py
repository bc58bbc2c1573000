"""The doctor's checks of destinations and sources: reachability, size limits, durability."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from postroom.admin.texts import one_line
from postroom.broker import Broker
from postroom.cli.configuration import Setting
from postroom.errors import ConfigError
from postroom.model.codec import MAX_PAYLOAD_BYTES
from postroom.model.diagnostics import Finding
from postroom.model.url import Url
from postroom.record import short_error
from postroom.registry import load_broker, load_source
from postroom.settings import RelaySettings

_PATIENCE_SECONDS = 15.0
_DAY = 86_400
_RUNS_CODE = re.compile(r"^plugin\.|^ssl\.(engine|providers)|\.cmd$", re.IGNORECASE)


def refuse_code(setting: Setting, unnamed_file: Path | None) -> Finding | None:
    """Return a finding in place of a check that would run code named by the current folder's file.

    A check imports handlers, and librdkafka loads plugins and runs commands that its options name.
    The current folder may belong to another user.
    """
    url: Url | None = setting.value
    if url is None or unnamed_file is None or not setting.source.startswith(str(unnamed_file)):
        return None
    code = [name for name, _ in url.query if _RUNS_CODE.search(name)]
    if url.scheme != "handlers" and not code:
        return None
    what = f"option {code[0]!r} of {url}" if code else str(url)
    return Finding(
        "info",
        f"{setting.source}: {what} was not checked",
        "the check runs code, and this file was only found in the current folder, not named",
        f"if you trust the file: postroom --config {unnamed_file} doctor",
    )


async def check_broker(
    url: Url, settings: RelaySettings, topics: Collection[str] = ()
) -> list[Finding]:
    """Check that the destination is reachable, accepts the largest event, and keeps messages."""
    if url.scheme == "handlers":
        sys.path.insert(0, ".")
    try:
        broker = load_broker(url)
    except ConfigError as error:
        why = "no relay starts with this destination"
        return [Finding("error", f"{url}: {error}", why, "correct the URL")]
    found = list(_judge_limit(broker, url))
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            found += await broker.check(topics)
    except Exception as error:
        return [_away(url, error, f"events of stream {settings.stream} wait until it is reachable")]
    finally:
        with suppress(Exception):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await broker.close()
    return found


def _away(url: Url, error: Exception, why: str) -> Finding:
    if isinstance(error, TimeoutError):
        what = f"{url} did not answer within {_PATIENCE_SECONDS:g} s"
    else:
        kind = type(error).__name__
        reason = one_line(short_error(error)).removeprefix(f"{kind}: ")
        what = f"{url} is unreachable: {reason or kind}"
    return Finding("warning", what, why, "check the broker; postroom reconnects automatically")


def _judge_limit(broker: Broker, url: Url) -> Iterator[Finding]:
    limit = broker.capabilities.max_bytes
    if limit is not None and limit < MAX_PAYLOAD_BYTES:
        yield Finding(
            "warning",
            f"{url} accepts {limit:,} bytes; an event may have {MAX_PAYLOAD_BYTES:,}",
            "a larger event is rejected and becomes a dead letter",
            "raise the broker's limit, or keep payloads below it",
        )


# -- sources ----------------------------------------------------------------------------------
async def check_source(section: Mapping[str, Setting]) -> list[Finding]:
    """Check the source of a [[consumer]] section without consuming messages."""
    url: Url = section["source"].value
    keeps: float = section["dedup_seconds"].value
    try:
        source = load_source(url)
    except ConfigError as error:
        why = "no consumer starts with this source"
        return [Finding("error", f"{url}: {error}", why, "correct the URL")]
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            found = await source.check()
    except Exception as error:
        return [_away(url, error, "its messages wait until it is reachable")]
    return [*found, *judge_memory(str(url), source.capabilities.redelivers_seconds, keeps)]


def judge_memory(where: str, redelivers: float | None, keeps: float) -> Iterator[Finding]:
    """Check that the dedup window covers the source's retention."""
    if redelivers is not None and redelivers > keeps:
        for_ever = redelivers == float("inf")
        kept = "forever" if for_ever else f"for {redelivers / _DAY:,.1f} days"
        yield Finding(
            "warning",
            f"{where} keeps messages {kept}; the inbox keeps ids for {keeps / _DAY:,.1f} days",
            "a message redelivered after that, as after an offset reset, is handled twice",
            "do not reset offsets beyond that age, or lower the retention (Kafka: retention.ms)"
            if for_ever
            else f"set dedup_seconds = {redelivers + _DAY:.0f} in its [[consumer]] section",
        )
