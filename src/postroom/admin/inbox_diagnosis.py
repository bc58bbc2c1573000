"""The doctor's look at inboxes: whether anything prunes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from postroom.admin.texts import many
from postroom.lookup import MAX_INBOX_ROWS, InboxStats
from postroom.model.diagnostics import Finding

_DAY_US = 86_400_000_000
_FEW = 100  # rows of dead and unfinished events are kept longer, and are few


def judge_inboxes(
    inboxes: Iterable[InboxStats], keep_seconds: float, now_us: int
) -> Iterator[Finding]:
    """Find inboxes with rows much older than any retention: no process prunes them."""
    for one in inboxes:
        age_us = 0 if one.oldest_us is None else now_us - one.oldest_us
        if one.rows < _FEW or age_us <= keep_seconds * 1_000_000 + _DAY_US:
            continue
        number = many(one.rows, "row") + (" or more" if one.rows == MAX_INBOX_ROWS else "")
        yield Finding(
            "warning",
            f"the inbox {one.consumer} has {number}, the oldest {age_us // _DAY_US:,} days old",
            "no relay or consumer prunes it: it belongs to `accept` by hand, to FastStream, or to "
            "handlers that no longer run, and it grows",
            f"postroom prune --inbox {one.consumer} --older-than 30d, regularly; or Inbox.forget",
        )
