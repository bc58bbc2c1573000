"""Formats of log lines: key=value or JSON. The lines are those of `LogObserver`."""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime

from postroom.engine.fact_log import LOGGER, LogObserver, cut, escape, say
from postroom.model.secrets import mask

__all__ = ["LOGGER", "JsonFormatter", "LogObserver", "TextFormatter", "say"]


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: at, level, logger, event and facts; masks secrets."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told: dict[str, object] = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        name, facts = getattr(record, "postroom", ("log", None))
        told["event"] = name
        if facts is None:
            told["message"] = cut(mask(record.getMessage()))
        else:
            told |= {key: _plain(value) for key, value in facts.items()}
        if record.exc_info:
            told["traceback"] = mask(self.formatException(record.exc_info))
        elif record.exc_text:
            told["traceback"] = mask(record.exc_text)
        return json.dumps(told)


def _plain(value: object) -> object:
    return value if isinstance(value, (int, float, bool)) else cut(mask(str(value)))


class TextFormatter(logging.Formatter):
    """Formats a record as text: time in UTC, control characters escaped, secrets masked."""

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        text = mask(super().format(record))  # a traceback keeps its lines
        return "".join(c if c.isprintable() or c == "\n" else escape(c) for c in text)
