"""The settings of a relay and of a consumer."""

from __future__ import annotations

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
from postroom.model.option_reader import check_numbers, check_words
from postroom.model.text import check_setting
from postroom.options import ConsumerOptions, Mode, RelayOptions
from postroom.retry import RetryPolicy

_LONGEST_NAME = MAX_STREAM_BYTES - len(INBOX_STREAM_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """The settings of a relay. Times are seconds or timedeltas.

    batch_size          events per read when idle
    max_batch_size      maximum events per read under a backlog
    max_batch_bytes     maximum bytes per read
    poll_seconds        maximum pause between two polls without a notification
    lease_seconds       time without a heartbeat after which another relay takes a lane
    keep_done_seconds   time to keep done events; 0 deletes them immediately
    keep_dead_seconds   time to keep dead letters of the stream; None keeps them until `purge`
    dedup_seconds       time to keep inbox rows of handlers: an event redelivered later is handled
                        again. Rows of dead and unfinished events are kept longer
    publish_seconds     timeout of a publish; without an answer its outcome is unknown
    stop_seconds        maximum duration of a graceful shutdown
    groups              number of lane groups: one is read while another is sent
    linger_seconds      time a settle waits for the rest of a batch after the first confirm
    suspect_limit       unknown outcomes of an event sent alone before one counts as an attempt
    misconfigured_seconds   delay before a retry with an unknown topic or a missing handler
    outage_seconds, max_outage_seconds   first and maximum pause while the broker is unreachable
    """

    stream: str = DEFAULT_STREAM
    batch_size: int = 100
    max_batch_size: int = 1_000
    max_batch_bytes: int = 8_000_000
    poll_seconds: float = 1.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    lease_seconds: float = 15.0
    keep_done_seconds: float = 86_400.0
    keep_dead_seconds: float | None = None
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
                f"max_batch_size ({self.max_batch_size}) must not be below batch_size "
                f"({self.batch_size})"
            )
        if self.groups not in (1, 2, 4, 8):
            raise ConfigError(f"groups must be 1, 2, 4 or 8, not {self.groups!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The settings of a consumer. Times are seconds or timedeltas.

    name            consumer name; stored messages are in the stream `inbox.<name>`. Default: the
                    name of the handlers, then of the queue or consumer group. Must be unique among
                    the consumers that share the tables, and stable across deployments
    mode            direct: a message is acknowledged after its handlers commit. durable: a message
                    is stored and acknowledged first, then handled with durable retries
    missing_id      messages without an id: `hash` derives an id from the body, `reject` turns the
                    message into a dead letter, `offset` uses its position in Kafka's log
    unhandled       messages of a type without a handler: `dead` or `ignore`
    retry           maximum attempts and backoff of a message
    max_in_flight   maximum unacknowledged messages; beyond it nothing more is fetched
    max_bytes       maximum bytes of body and headers; a larger message becomes a dead letter
                    without its body
    max_stored      direct mode: maximum stored messages of failing keys; at this number
                    nothing more is received
    batch           maximum messages, of different keys, that share one transaction. If one fails,
                    all are rolled back and each is handled individually. Direct mode only
    stop_seconds    maximum time a graceful shutdown waits for running handlers
    lease_seconds   lease of the relay that handles stored messages
    misconfigured_seconds   delay before a retry of handlers without a usable transaction
    outage_seconds, max_outage_seconds   first and maximum pause while the database is unreachable
    dedup_seconds   time to keep inbox rows: must exceed the time in which the broker can redeliver
                    a message, otherwise a duplicate is handled twice
    keep_dead_seconds   time to keep dead letters; None keeps them until `purge`
    suspect_limit   commits with an unknown outcome before one counts as an attempt
    """

    name: str = ""
    mode: Mode = "direct"
    missing_id: MissingId = "hash"
    unhandled: Literal["dead", "ignore"] = "dead"
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_in_flight: int = 1_000
    max_bytes: int = 16_000_000
    max_stored: int = 10_000
    batch: int = 1
    stop_seconds: float = 30.0
    lease_seconds: float = 15.0
    misconfigured_seconds: float = 30.0
    outage_seconds: float = 0.5
    max_outage_seconds: float = 30.0
    dedup_seconds: float = 2_592_000.0
    keep_dead_seconds: float | None = None
    suspect_limit: int = 3

    if TYPE_CHECKING:  # as in RelaySettings

        def __init__(self, **options: Unpack[ConsumerOptions]) -> None: ...

    def __post_init__(self) -> None:
        if self.name:
            check_setting("consumer: name", self.name, _LONGEST_NAME)
        check_words(self, "consumer")
        check_numbers(self, "consumer")
        if self.batch > 1 and self.mode == "durable":
            raise ConfigError(
                "consumer: batch requires mode='direct'; stored messages are handled one by one"
            )
        if not isinstance(self.retry, RetryPolicy):
            raise ConfigError(f"consumer: retry must be a RetryPolicy(…), not {self.retry!r}")
