"""Operators' questions: get, find, count. Nothing is changed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from postroom.commands import AuditEntry
from postroom.lookup import (
    MAX_CAUSES,
    MAX_INBOX_ROWS,
    RECENT_SECONDS,
    Accepted,
    Details,
    Filter,
    InboxStats,
    Standing,
    Stats,
)
from postroom.model.controls import Control
from postroom.model.dead_letters import DeadCause
from postroom.record import Record, Stage, State
from postroom.search import walk_by
from postroom.stores.memory.search import Search
from postroom.stores.memory.tables import Stored, Tables

_SECOND = 1_000_000


class Lookup:
    """The operators' questions to the memory store."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.now_us = now_us
        self.data = Tables()
        self._seq = 0
        self.search = Search(lambda: self.data, self.find)

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def changed(self) -> None:
        """Wake callers that wait for a change."""

    async def get(self, event_id: str) -> Record | None:
        seq = self.data.ids.get(event_id)
        return None if seq is None else self.data.rows[seq].record()

    async def look_up(self, ids: Sequence[str]) -> dict[str, Standing]:
        there = {i: self.data.rows[self.data.ids[i]] for i in ids if i in self.data.ids}
        return {
            i: Standing(stored.row.stream, str(stored.state), stored.replaced_by)
            for i, stored in there.items()
        }

    async def acceptances(self, ids: Sequence[str]) -> list[Accepted]:
        wanted, at = set(ids), self.data.inbox_at
        found = [
            Accepted(*name, at.get(name), state == State.DONE)
            for name, state in self.data.inbox.items()
            if name[1] in wanted
        ]
        return sorted(found, key=lambda one: (one.at_us or 0, one.consumer))

    async def open_keys(self, stream: str, limit: int) -> list[bytes]:
        rows = self.data.rows.values()
        found = [s.row.key_hash for s in rows if s.row.stream == stream and s.stage != Stage.OVER]
        return found[:limit]

    async def find(self, wanted: Filter) -> list[Record]:
        walk_by(wanted, self.search.names)
        found = []
        for seq in sorted(self.data.rows, reverse=wanted.newest):
            stored = self.data.rows[seq]
            r = stored.row
            if (
                seq > wanted.after_seq
                and (wanted.until_seq is None or seq <= wanted.until_seq)
                and all(
                    want is None or want == have
                    for want, have in (
                        (wanted.stream, r.stream),
                        (wanted.state, stored.state),
                        (wanted.type, r.type),
                        (wanted.topic, r.topic),
                        (wanted.key, r.key),
                        (wanted.correlation_id, r.correlation_id),
                        (wanted.causation_id, r.causation_id),
                    )
                )
                and _matches(stored, wanted)
            ):
                found.append(stored.record())
        return found[: wanted.limit]

    async def stats(self, stream: str | None = None) -> Stats:
        counts = dict.fromkeys(State, 0)
        oldest: int | None = None
        for stored in self.data.rows.values():
            if stream in (None, stored.row.stream):
                counts[State(stored.state)] += 1
                if stored.stage == Stage.READY:
                    since = max(stored.created_us, stored.next_attempt_us or 0)
                    oldest = since if oldest is None else min(oldest, since)
        lag = 0.0 if oldest is None else max(0.0, (self.now_us() - oldest) / _SECOND)
        blocked = sum(stream in (None, of_stream) for of_stream, _ in self.data.blocks)
        return Stats({str(k): n for k, n in counts.items()}, lag, blocked)

    async def streams(self) -> list[str]:
        return sorted({s.row.stream for s in self.data.rows.values()} | set(self.data.leases))

    async def details(self, event_id: str) -> Details | None:
        return self.data.details(event_id)

    async def dead_causes(
        self, stream: str | None = None, limit: int = MAX_CAUSES
    ) -> list[DeadCause]:
        return heapq.nlargest(limit, self.data.dead_causes(stream), key=lambda one: one.how_many)

    async def audit_log(self, limit: int) -> list[AuditEntry]:
        return self.data.audit_log[::-1][:limit]

    async def inboxes(self) -> list[InboxStats]:
        found: dict[str, list[int]] = {}
        since = self.now_us() - RECENT_SECONDS * _SECOND
        for (consumer, _), at in self.data.inbox_at.items():
            found.setdefault(consumer, []).append(at)
        return [
            InboxStats(
                name,
                min(len(at), MAX_INBOX_ROWS),
                min(at),
                min(sum(one > since for one in at), MAX_INBOX_ROWS),
                max(at),
            )
            for name, at in sorted(found.items())
        ]

    async def controls(self) -> list[Control]:
        now = self.now_us()
        return [
            one._replace(
                paused=one.paused_us is not None and (one.until_us is None or one.until_us > now)
            )
            for _, one in sorted(self.data.controls.items())
        ]


def _matches(stored: Stored, wanted: Filter) -> bool:
    since, before = wanted.from_us, wanted.before_us
    over, over_before = stored.settled_us, wanted.settled_before_us
    return (
        (wanted.error is None or wanted.error in (stored.last_error or ""))
        and (since is None or stored.created_us >= since)
        and (before is None or stored.created_us < before)
        and (over_before is None or (over is not None and over < over_before))
    )
