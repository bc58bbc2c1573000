"""Lines of librdkafka's own log, without secrets, where Python's logging expects them."""

from __future__ import annotations

import logging

from postroom.brokers.kafka.settings import KafkaSettings

_log = logging.getLogger("postroom.brokers.kafka")


class LogLines:
    """Takes lines in the form that confluent-kafka hands them over.

    An outage is told once, by the relay; librdkafka repeats itself at every try. So its lines are
    for whoever looks for details: only what is grave to it is more than DEBUG.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    def log(self, level: int, form: str, *parts: object) -> None:
        grave = logging.WARNING if level >= logging.CRITICAL else logging.DEBUG
        if _log.isEnabledFor(grave):
            _log.log(grave, "%s", self._settings.mask(form % parts if parts else form))
