"""The verdict in one line, and the list of problems that need an operator, worst first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from postroom.admin.texts import cut, duration, instant, many
from postroom.dashboard.sample import FOLLOWERS, Head, Sample, StreamNow
from postroom.model.clock import host_microseconds
from postroom.model.dead_letters import Group
from postroom.operation import OperationState
from postroom.telemetry.conditions import LAG_SECONDS

_SHOWN_GROUPS = 20


class Verdict(NamedTuple):
    """`level` is ok, warning or error."""

    level: str
    text: str


def judge(found: Sample, error: str | None, read_at: float | None) -> Verdict:
    """Return the worst problem in one line, or that all streams deliver."""
    if error is not None:
        age = "" if read_at is None else f" for {duration(max(0.0, time.time() - read_at))}"
        return Verdict("error", f"The store has not answered{age}: these figures are old")
    problems = sorted(
        (problem for stream in found.streams for problem in _problems(stream)), key=lambda p: -p[0]
    )
    if not problems:
        outboxes = len(found.streams)
        if not outboxes:
            return Verdict("ok", "No stream has events or a relay yet")
        lag = max((stream.lag_seconds for stream in found.streams), default=0.0)
        waits = f"oldest waiting event {duration(lag)}" if lag > 0 else "nothing waits"
        all_of = "The stream delivers" if outboxes == 1 else f"All {outboxes} streams deliver"
        return Verdict("ok", f"{all_of}; {waits}")
    _, level, text = problems[0]
    more = len(problems) - 1
    others = f"; {many(more, 'other problem')}" if more else ""
    return Verdict(level, f"{text}{others}")


def _problems(now: StreamNow) -> list[tuple[float, str, str]]:
    """Return weight, level and text of each problem of a stream."""
    name = cut(now.consumer or now.name, 60)
    found: list[tuple[float, str, str]] = []
    if now.health == "no relay" and now.waiting:
        found.append((9.0, "error", f"No relay serves {name}: {many(now.waiting, 'event')} wait"))
    if now.health == "unhealthy":
        what = "destination" if now.consumer is None else "source or handler"
        found.append((8.0, "error", f"The {what} of {name} is unreachable, or its relay is stuck"))
    if now.blocked_keys:
        oldest = min((head.created_us for head in now.heads), default=None)
        age = 0.0 if oldest is None else (host_microseconds() - oldest) / 1_000_000
        level = "error" if age > LAG_SECONDS else "warning"
        verb = "has" if now.blocked_keys == 1 else "have"
        waited = f"{verb} waited {duration(max(0.0, age))} behind a failed event"
        text = f"{many(now.blocked_keys, 'key')} of {name} {waited}"
        found.append(((7.0 if level == "error" else 4.0) + min(age, 1e6) / 1e7, level, text))
    if now.pause is not None:
        who = cut(now.pause.who, 40)
        found.append(
            (5.0, "warning", f"{name} is paused by {who}; {many(now.waiting, 'event')} wait")
        )
    elif now.lag_seconds > LAG_SECONDS and not now.blocked_keys:
        text = f"The oldest event of {name} has waited {duration(now.lag_seconds)}"
        found.append((6.0, "error", text))
    if now.dead:
        found.append((3.0, "warning", f"{name} has {many(now.dead, 'dead letter')}"))
    return found


def needs(found: Sample, groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return what needs an operator, worst first, as data."""
    ranked: list[tuple[float, dict[str, Any]]] = []
    for stream in found.streams:
        for weight, level, text in _problems(stream):
            if weight >= 5.0 and not (stream.blocked_keys and 7.0 <= weight < 8.0):
                ranked.append((weight * 1_000, _alarm(stream, level, text)))
        ranked += [(_weight(head), _blocked(head)) for head in stream.heads]
    for operation in found.operations:
        if operation.state == OperationState.STOPPED:
            fact = {
                "kind": "operation", "level": "error", "id": operation.id,
                "text": f"Operation {operation.id} stopped: {cut(operation.error or '', 200)}",
            }  # fmt: skip
            ranked.append((6_500.0, fact))
    ranked += [(float(min(one.how_many, 900)), group_facts(one)) for one in groups[:_SHOWN_GROUPS]]
    return [facts for _, facts in sorted(ranked, key=lambda pair: -pair[0])]


def _weight(head: Head) -> float:
    age = (host_microseconds() - head.created_us) / 1_000_000
    return 1_000.0 + min(4_000.0, age / 10) + head.followers


def _alarm(stream: StreamNow, level: str, text: str) -> dict[str, Any]:
    return {
        "kind": "alarm", "level": level, "stream": stream.name, "text": text,
        "paused": stream.pause is not None,
    }  # fmt: skip


def _blocked(head: Head) -> dict[str, Any]:
    age = max(0.0, (host_microseconds() - head.created_us) / 1_000_000)
    return {
        "kind": "blocked",
        "level": "error" if age > LAG_SECONDS else "warning",
        "stream": head.stream,
        "key": head.key,
        "id": head.id,
        "type": head.type,
        "error": head.error,
        "attempts": head.attempts,
        "waited_seconds": round(age, 3),
        "next_attempt_at": instant(head.next_attempt_us),
        "followers": head.followers,
        "followers_are_more": head.followers >= FOLLOWERS,
    }


def group_facts(one: Group) -> dict[str, Any]:
    """Return a group of dead letters as data."""
    return {
        "kind": "dead",
        "level": "warning",
        "group": one.id,
        "count": one.how_many,
        "type": one.type,
        "pattern": one.pattern,
        "example": one.example,
        "first_at": instant(one.first_us),
        "last_at": instant(one.last_us),
    }
