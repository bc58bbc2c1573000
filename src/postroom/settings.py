"""The settings of a relay and of a consumer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from postroom.errors import ConfigError
from postroom.event import (
    DEFAULT_STREAM,
    INBOX_STREAM_PREFIX,
    MAX_NAME_BYTES,
    MAX_STREAM_BYTES,
)
from postroom.model.message_id import MissingId
from postroom.model.suggest import unknown
from postroom.model.text import check_setting
from postroom.retry import MAX_WAIT_SECONDS, RetryPolicy

Mode = Literal["direct", "durable"]

_WORDS: Mapping[str, tuple[str, ...]] = {
    "mode": ("direct", "durable"),
    "missing_id": ("hash", "reject", "offset"),
    "unhandled": ("dead", "ignore"),
}
_LONGEST_NAME = MAX_STREAM_BYTES - len(INBOX_STREAM_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a relay works. All times are seconds.

    batch_size          a read asks for this many events when little is going on …
    max_batch_size      … and for up to this many when there is a backlog
    max_batch_bytes     … but never for more payload than this
    poll_seconds        the longest wait between two looks when nobody kicks
    lease_seconds       how long a lane stays ours without a sign of life
    keep_done_seconds   how long done events are kept for people to see; 0 deletes them at once
    dedup_seconds   how long handlers remember what they did: what comes again later takes
                        effect a second time. Of dead and unfinished events they forget nothing
    publish_seconds     a publish without an answer for so long counts as unknown
    stop_seconds        how long a graceful stop waits for what is in flight
    groups              the lanes are split into so many groups: one is read while another is sent
    linger_seconds      how long a settle waits for the rest of a batch once the first is confirmed
    suspect_limit       an event that was unknown alone this often is charged an attempt
    misconfigured_seconds   the wait before an unknown topic or a missing handler is tried again
    outage_seconds, max_outage_seconds   the first and the longest pause when the broker is away
    """

    stream: str = DEFAULT_STREAM
    batch_size: int = 100
    max_batch_size: int = 1_000
    max_batch_bytes: int = 8_000_000
    poll_seconds: float = 1.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    lease_seconds: float = 15.0
    keep_done_seconds: float = 86_400.0
    dedup_seconds: float = 2_592_000.0
    prune_seconds: float = 60.0
    publish_seconds: float = 30.0
    stop_seconds: float = 30.0
    groups: int = 2
    linger_seconds: float = 0.005
    suspect_limit: int = 3
    misconfigured_seconds: float = 30.0
    outage_seconds: float = 0.5
    max_outage_seconds: float = 30.0
    name: str = ""

    def __post_init__(self) -> None:
        check_setting("stream", self.stream, MAX_STREAM_BYTES)
        for name, kind in _NUMBERS.items():
            _check_number(name, kind, getattr(self, name))
        if not isinstance(self.retry, RetryPolicy):
            raise ConfigError(f"retry must be a RetryPolicy(…), not {self.retry!r}")
        if self.name != "":
            check_setting("name", self.name, MAX_NAME_BYTES)
        if self.max_batch_size < self.batch_size:
            raise ConfigError(
                f"max_batch_size ({self.max_batch_size}) is below batch_size ({self.batch_size})"
            )
        if self.groups not in (1, 2, 4, 8):
            raise ConfigError(f"groups is 1, 2, 4 or 8, not {self.groups!r}")


_MOST_SECONDS = 100 * MAX_WAIT_SECONDS
_NUMBERS = {f.name: str(f.type) for f in fields(RelaySettings) if f.type in ("int", "float")}


def _check_number(name: str, kind: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name} must be a number, not {value!r}")
    if name == "keep_done_seconds":
        if not value >= 0:
            raise ConfigError(f"{name} must be 0 or more, not {value!r}")
    elif not value > 0:
        raise ConfigError(f"{name} must be more than 0, not {value!r}")
    if kind == "int" and not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, not {value!r}")
    if kind == "float" and value > _MOST_SECONDS:
        raise ConfigError(f"{name} must be at most a hundred years of seconds, not {value!r}")


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
    dedup_seconds   how long the inbox remembers what was done: longer than the broker can
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
    dedup_seconds: float = 2_592_000.0
    suspect_limit: int = 3

    def __post_init__(self) -> None:
        if self.name:
            check_setting("consumer: name", self.name, _LONGEST_NAME)
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
