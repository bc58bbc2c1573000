"""The settings of a relay and of a consumer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Unpack

from postroom.errors import ConfigError
from postroom.event import (
    DEFAULT_STREAM,
    INBOX_STREAM_PREFIX,
    MAX_NAME_BYTES,
    MAX_STREAM_BYTES,
)
from postroom.model.message_id import MissingId
from postroom.model.option_reader import check_numbers
from postroom.model.suggest import unknown
from postroom.model.text import check_setting
from postroom.options import ConsumerOptions, Mode, RelayOptions
from postroom.retry import RetryPolicy

_WORDS: Mapping[str, tuple[str, ...]] = {
    "mode": ("direct", "durable"),
    "missing_id": ("hash", "reject", "offset"),
    "unhandled": ("dead", "ignore"),
}
_LONGEST_NAME = MAX_STREAM_BYTES - len(INBOX_STREAM_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a relay works. Times are seconds or timedeltas.

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

    if TYPE_CHECKING:  # the dataclass makes its own: here it also takes timedeltas

        def __init__(self, **options: Unpack[RelayOptions]) -> None: ...

    def __post_init__(self) -> None:
        check_setting("stream", self.stream, MAX_STREAM_BYTES)
        check_numbers(self, may_be_zero=("keep_done_seconds",))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a consumer works. Times are seconds or timedeltas.

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

    if TYPE_CHECKING:  # as in RelaySettings

        def __init__(self, **options: Unpack[ConsumerOptions]) -> None: ...

    def __post_init__(self) -> None:
        if self.name:
            check_setting("consumer: name", self.name, _LONGEST_NAME)
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise ConfigError(f"consumer: {unknown(name, str(getattr(self, name)), words)}")
        check_numbers(self, "consumer")
        if self.batch > 1 and self.mode == "durable":
            raise ConfigError("consumer: a batch is for mode='direct'; kept messages go one by one")
        if not isinstance(self.retry, RetryPolicy):
            raise ConfigError(f"consumer: retry must be a RetryPolicy(…), not {self.retry!r}")
