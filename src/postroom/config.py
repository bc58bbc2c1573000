"""The settings of a relay, with the defaults that the documents expect (S4.3)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from postroom.errors import ConfigError, EventError
from postroom.event import DEFAULT_STREAM, MAX_NAME_BYTES, MAX_STREAM_BYTES, check_text
from postroom.retry import MAX_WAIT_SECONDS, RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a relay works. All times are seconds.

    batch_size          a read asks for this many events when little is going on …
    max_batch_size      … and for up to this many when there is a backlog
    max_batch_bytes     … but never for more payload than this
    poll_seconds        the longest wait between two looks when nobody kicks
    lease_seconds       how long a lane stays ours without a sign of life
    keep_done_seconds   how long done events are kept for people to see; 0 deletes them at once
    keep_seen_seconds   how long handlers remember what they did: what comes again later takes
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
    keep_seen_seconds: float = 2_592_000.0
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
        try:
            check_text("stream", self.stream, MAX_STREAM_BYTES)
        except EventError as error:
            raise ConfigError(str(error).removeprefix("event.")) from error
        for name, kind in _NUMBERS.items():
            _check_number(name, kind, getattr(self, name))
        if not isinstance(self.retry, RetryPolicy):
            raise ConfigError(f"retry must be a RetryPolicy(…), not {self.retry!r}")
        if self.name != "":
            try:
                check_text("name", self.name, MAX_NAME_BYTES)
            except EventError as error:
                raise ConfigError(str(error).removeprefix("event.")) from error
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
