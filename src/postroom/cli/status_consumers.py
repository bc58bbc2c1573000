"""Consumers in `postroom status`: what they handled, how fast, and what waits at their brokers.

The inbox tells what was handled; a broker is asked if the source is known: from a [[consumer]]
section of the configuration, or by --source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import click

from postroom.admin.consumer_status import ConsumerSeen
from postroom.admin.stream_status import StreamSeen
from postroom.admin.texts import one_line
from postroom.cli.configuration import Configuration
from postroom.cli.doctor_brokers import refuse_code
from postroom.errors import ConfigError
from postroom.lookup import MAX_INBOX_ROWS
from postroom.model.url import Url
from postroom.record import short_error
from postroom.registry import load_source
from postroom.source import Source

_ANSWER_SECONDS = 8.0


class Sources:
    """The sources that are known, by the names of their consumers."""

    def __init__(self, urls: Iterable[Url]) -> None:
        self._known: dict[str, tuple[Url, Source]] = {}
        for url in urls:
            source = load_source(url)
            self._known[source.name or ""] = url, source

    def configure(self, configuration: Configuration, unnamed_file: Path | None) -> None:
        """Add the sources of the configuration; those whose options run code only if named."""
        for section in configuration.consumers:
            if refuse_code(section["source"], unnamed_file) is not None:
                continue
            url = section["source"].value
            try:
                source = load_source(url)
            except ConfigError:
                continue  # `doctor` reports it
            self._known.setdefault(section["name"].value or source.name or "", (url, source))

    async def ask(self, consumer: str) -> tuple[str | None, int | None, str | None]:
        """Return the source of a consumer, the messages that wait there, and an error."""
        known = self._known.get(consumer)
        if known is None:
            return None, None, None
        url, source = known
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return str(url), await source.backlog(), None
        except TimeoutError:
            return str(url), None, f"no answer within {_ANSWER_SECONDS:g} s"
        except Exception as error:
            return str(url), None, short_error(error)


async def with_backlog(seen: StreamSeen, sources: Sources) -> StreamSeen:
    """Return the status of a stream with what waits at the broker of its consumer."""
    if seen.consumer is None:
        return seen
    source, waiting, error = await sources.ask(seen.consumer.name)
    told = replace(seen.consumer, source=source, waiting=waiting, source_error=error)
    return replace(seen, consumer=told)


def lines_of(seen: ConsumerSeen) -> list[str]:
    """Return the lines of a consumer, at most 80 columns wide."""
    total = sum(seen.handled.values())
    more = "+" if max(seen.handled.values(), default=0) >= MAX_INBOX_ROWS else ""
    last = f", last at {seen.last_at[:19]}Z" if seen.last_at else ""
    texts = [("handled", f"{total:,}{more} in the inbox, {seen.per_second:g}/s{last}")]
    if seen.source is not None:
        waiting = "unknown" if seen.waiting is None else f"{seen.waiting:,}"
        error = f": {one_line(seen.source_error)}" if seen.source_error else ""
        texts.append(("waiting", f"{waiting} at {one_line(seen.source)}{error}"))
    lines: list[str] = []
    for name, text in texts:
        start = f"  {name:<12}"
        lines += click.wrap_text(text, 80, start, " " * len(start)).splitlines()
    return [*lines, "", "  stored messages and dead letters:"]
