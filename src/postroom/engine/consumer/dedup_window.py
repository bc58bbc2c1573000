"""The deduplication window: how long an inbox recognizes repeats.

A message that the broker redelivers after its inbox row was pruned takes effect a second time. The
window must therefore be longer than the broker can redeliver; a consumer warns where it can
determine that.
"""

from __future__ import annotations

import logging
import math

_log = logging.getLogger(__name__)


def warn_of_a_short_memory(name: str, keep_seconds: float, redelivers: float | None) -> bool:
    """Log a warning if the broker can redeliver pruned messages; return whether it can."""
    if redelivers is None or redelivers <= keep_seconds:
        return False
    keeps, for_ever = keep_seconds / 86_400, redelivers == math.inf
    _log.warning(
        "consumer %s remembers messages for %.1f days, but the broker can redeliver them %s: a "
        "later repeat takes effect twice. %s",
        name, keeps, "forever" if for_ever else f"for {redelivers / 86_400:.1f}",
        "Do not reset offsets beyond that age, or lower the retention of the topic"
        if for_ever else "Raise dedup_seconds",
    )  # fmt: skip
    return True
