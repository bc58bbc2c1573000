"""A consumer, as its inbox shows it: what it handled, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.admin.texts import instant
from postroom.event import INBOX_STREAM_PREFIX
from postroom.lookup import RECENT_SECONDS, InboxStats
from postroom.record import inbox_name


@dataclass(frozen=True)
class ConsumerSeen:
    """A consumer, as its inbox and its broker show it.

    handled     messages of each handler in the inbox, at most MAX_INBOX_ROWS are counted; older
                ones were pruned
    per_second  in the last minute
    source      its queue or topics, if they are known; None: the broker was not asked
    waiting     messages at the broker: in the queue, or the lag of the group; None: unknown
    """

    name: str
    handled: dict[str, int]
    per_second: float
    last_at: str | None
    source: str | None = None
    waiting: int | None = None
    source_error: str | None = None


def consumer_of(stream: str, inboxes: Sequence[InboxStats]) -> ConsumerSeen:
    """Return the consumer whose messages a stream stores."""
    name = stream.removeprefix(INBOX_STREAM_PREFIX)
    start = inbox_name(name, "")
    own = {
        one.consumer.removeprefix(start): one for one in inboxes if one.consumer.startswith(start)
    }
    newest = max((one.newest_us or 0 for one in own.values()), default=0)
    return ConsumerSeen(
        name,
        {handler: one.rows for handler, one in own.items()},
        round(sum(one.recent for one in own.values()) / RECENT_SECONDS, 2),
        instant(newest) if newest else None,
    )
