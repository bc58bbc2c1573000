"""Lowers aiormq's log lines about postroom's connections that repeat the relay's reports.

The relay reports an outage once. aiormq logs an error, often with a traceback, at every connection
attempt; for postroom's connections such lines become DEBUG lines of `postroom.brokers.rabbitmq`.
Lines about other connections of the same process are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_log = logging.getLogger("postroom.brokers.rabbitmq")
_ours: ContextVar[bool] = ContextVar("postroom_rabbitmq", default=False)  # tasks inherit it


class _Ours(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if not _ours.get():
            return True
        _log.debug("%s: %s", record.name, record.getMessage(), exc_info=record.exc_info)
        return False


def take_over() -> None:
    """Install the filter; idempotent."""
    for name in ("aiormq.connection", "aiormq.channel"):
        logger = logging.getLogger(name)
        if not any(isinstance(each, _Ours) for each in logger.filters):
            logger.addFilter(_Ours())


@contextmanager
def ours() -> Iterator[None]:
    """Mark connections opened inside as postroom's."""
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)
