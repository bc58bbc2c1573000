"""librdkafka's log lines, without secrets, passed to Python's logging."""

from __future__ import annotations

import logging

from postroom.brokers.kafka.settings import KafkaSettings

_log = logging.getLogger("postroom.brokers.kafka")


class LogLines:
    """Receives lines in the form that confluent-kafka passes them.

    The relay reports an outage once; librdkafka repeats it at every attempt. Its lines are
    therefore logged at DEBUG, except those it considers critical.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    def log(self, level: int, form: str, *parts: object) -> None:
        grave = logging.WARNING if level >= logging.CRITICAL else logging.DEBUG
        if _log.isEnabledFor(grave):
            _log.log(grave, "%s", self._settings.mask(form % parts if parts else form))
