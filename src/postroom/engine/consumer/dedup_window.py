"""How long an inbox remembers: the window within which a repeat is known as one.

A message that the broker delivers again after its row was forgotten takes effect a second time. So
the span must be longer than anything the broker can do: a consumer warns where it can tell.
"""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


def warn_of_a_short_memory(name: str, keep_seconds: float, redelivers: float | None) -> bool:
    """Log a warning if the broker can deliver again what was forgotten; say whether it can."""
    if redelivers is None or redelivers <= keep_seconds:
        return False
    _log.warning(
        "consumer %s remembers messages for %.1f days, but the broker can redeliver them for "
  "%.1f: a later repeat takes effect twice. Raise dedup_seconds",
        name, keep_seconds / 86_400, redelivers / 86_400,
    )  # fmt: skip
    return True
