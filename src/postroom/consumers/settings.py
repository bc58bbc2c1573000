"""The settings of a consumer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from postroom.consumers.letter import STREAM
from postroom.errors import ConfigError, EventError
from postroom.event import MAX_STREAM_BYTES, check_text
from postroom.message_id import MissingId
from postroom.retry import RetryPolicy
from postroom.url import unknown

Mode = Literal["direct", "durable"]

_WORDS: Mapping[str, tuple[str, ...]] = {
    "mode": ("direct", "durable"),
    "missing_id": ("hash", "reject", "offset"),
    "unhandled": ("dead", "ignore"),
}
_LONGEST_NAME = MAX_STREAM_BYTES - len(STREAM)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a consumer works. All times are seconds.

    name            the consumer's: its kept messages are in the stream `inbox.<name>`. Left empty,
                    it is the name of its handlers, else of its queue or consumer group. Distinct
                    among all that share the tables, and the same after each deployment
    mode            direct: a message is acknowledged after its handlers have committed. durable: it
                    is stored first, acknowledged, and handled later, with durable retries
    missing_id      what to do with a message without an id: `hash` makes one from its body,
                    `reject` makes a dead letter of it, `offset` takes its place in Kafka's log
    unhandled       what to do with a type that has no handler: `dead`, or `ignore`
    retry           how often a message is tried, and how long its key waits in between
    max_in_flight   so many messages are in hand at most; the broker is held back beyond
    max_bytes       a message with more bytes, body and headers together, becomes a dead letter
                    without its body
    max_kept        direct mode: so many messages wait in the backlog at most, of keys that fail and
                    would fill the room of others; at this number nothing more is received
    batch           so many messages, of different keys, share one transaction at most. When one of
                    them fails all are rolled back, and each is handled by itself. Direct mode only
    stop_seconds    how long a graceful stop waits for handlers that run
    lease_seconds   of the relay that works through kept messages
    misconfigured_seconds   the wait before handlers without a usable transaction are tried again
    outage_seconds, max_outage_seconds   the first and the longest pause when the database is away
    keep_seen_seconds   how long the inbox remembers what was done: longer than the broker can
                    deliver a message again, or a repeat takes effect twice
    suspect_limit   a message whose commit was in doubt this often is charged an attempt
    """

    name: str = ""
    mode: Mode = "direct"
    missing_id: MissingId = "hash"
    unhandled: Literal["dead", "ignore"] = "dead"
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_in_flight: int = 1_000
    max_bytes: int = 16_000_000
    max_kept: int = 10_000
    batch: int = 1
    stop_seconds: float = 30.0
    lease_seconds: float = 15.0
    misconfigured_seconds: float = 30.0
    outage_seconds: float = 0.5
    max_outage_seconds: float = 30.0
    keep_seen_seconds: float = 2_592_000.0
    suspect_limit: int = 3

    def __post_init__(self) -> None:
        if self.name:
            try:
                check_text("name", self.name, _LONGEST_NAME)
            except EventError as error:
                raise ConfigError(f"consumer: {str(error).removeprefix('event.')}") from error
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise ConfigError(f"consumer: {unknown(name, str(getattr(self, name)), words)}")
        if not isinstance(self.batch, int):
            raise ConfigError(f"consumer: batch must be a whole number, not {self.batch!r}")
        if self.batch > 1 and self.mode == "durable":
            raise ConfigError("consumer: a batch is for mode='direct'; kept messages go one by one")
        if not isinstance(self.retry, RetryPolicy):
            raise ConfigError(f"consumer: retry must be a RetryPolicy(…), not {self.retry!r}")
        for given in fields(self):
            value = getattr(self, given.name)
            if given.type in ("int", "float") and (
                isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0
            ):
                raise ConfigError(f"consumer: {given.name} must be more than 0, not {value!r}")


def merge(settings: ConsumerSettings | None, options: Mapping[str, Any]) -> ConsumerSettings:
    """Return the settings with these changed. Raises ConfigError for a name that is none."""
    known = {given.name for given in fields(ConsumerSettings)}
    for name in options:
        if name not in known:
            raise ConfigError(f"consumer: {unknown('setting', name, known)}")
    return replace(settings or ConsumerSettings(), **options)
