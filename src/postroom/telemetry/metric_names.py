"""Every metric by its name, with the text that says what it counts and in which process.

`this relay` and `this consumer` are in the process that is scraped; `the store` is the same whoever
asks. Counters are served with `_total` at the end of their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_PLACE = ("stream", "destination")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LAG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
_SIZES = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)

COUNTERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "postroom_events_published": (
        "Events that this relay handed to its destination, each time it did, whatever the outcome.",
        (*_PLACE, "topic"),
    ),
    "postroom_events_confirmed": (
        "Events that this relay settled as done, after their destination confirmed them.",
        (*_PLACE, "topic"),
    ),
    "postroom_events_failed": (
        "Tries of this relay that were not confirmed, by verdict; an outage counts here too.",
        (*_PLACE, "topic", "verdict"),
    ),
    "postroom_events_dead": ("Events that this relay made dead letters.", _PLACE),
    "postroom_events_repeated": (
        "Events that were confirmed to this relay but not settled: they are sent again.",
        _PLACE,
    ),
    "postroom_events_fenced": (
        "Outcomes that this relay threw away because it had lost their lane.",
        _PLACE,
    ),
    "postroom_events_vanished": (
        "Events that this relay had read and that the database lost, for example in a fail-over.",
        _PLACE,
    ),
    "postroom_effects_lost": (
        "Events whose handlers had committed effects that the database lost: handled again.",
        _PLACE,
    ),
    "postroom_alarms": ("Alarms of this relay: something needs a person.", _PLACE),
    "postroom_store_errors": ("Calls of this relay to the store that failed.", _PLACE),
}
TOTALS: Final[Mapping[str, str]] = {
    "postroom_events_added": (
        "Events handed to add() in this process, also where the transaction was rolled back."
    ),
    "outbox_new": (
        "Events handed to add() in this process, also where the transaction was rolled back."
    ),
    "outbox_done": "Events that this relay settled as done.",
    "outbox_failed": "Events that this relay settled as failed or dead, each time it did.",
}
HISTOGRAMS: Final[Mapping[str, tuple[str, tuple[float, ...]]]] = {
    "postroom_delivery_lag_seconds": (
        "From the moment an event could go to its settle as done by this relay.",
        _LAG,
    ),
    "postroom_batch_size": ("Events in one publish call of this relay.", _SIZES),
    "postroom_publish_seconds": ("How long a publish call of this relay took.", _SECONDS),
    "postroom_settle_seconds": (
        "How long the settle of a batch took, in which an event was done.",
        _SECONDS,
    ),
}
GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "postroom_up": ("1 while this relay runs, 0 while it starts or stops.", ("stream",)),
    "postroom_store_up": ("1 if the last look of this relay at the store succeeded.", ("stream",)),
    "postroom_events": ("Events in the store by state, as of the last look.", ("stream", "state")),
    "postroom_pending_events": (
        "Events in the store that wait to be sent, pending or failed, as of the last look.",
        ("stream",),
    ),
    "postroom_oldest_age_seconds": (
        "Age of the oldest event in the store that could go, as of the last look.",
        ("stream",),
    ),
    "outbox_lag_seconds": (
        "Age of the oldest event in the store that could go, as of the last look.",
        ("stream",),
    ),
    "postroom_blocked_keys": ("Keys in the store held by a failed event.", ("stream",)),
    "postroom_lanes_free": ("Lanes in the store that no live relay holds.", ("stream",)),
    "postroom_relays": ("Relays of the stream that are alive, as the store sees it.", ("stream",)),
    "postroom_in_flight_events": ("Events under way in this relay, now.", ("stream",)),
    "outbox_in_flight": ("Events under way in this relay, now.", ("stream",)),
    "postroom_lanes_owned": ("Lanes that this relay holds, now.", ("stream",)),
    "postroom_breaker_open": ("1 while the destination is away for this relay.", _PLACE),
}

MESSAGE_COUNTERS: Final[Mapping[str, str]] = {
    "postroom_messages_received": "Messages that this consumer took from its source.",
    "postroom_messages_handled": (
        "Messages whose handlers have committed in this consumer, at once or after they were kept."
    ),
    "postroom_messages_repeated": (
        "Messages that this consumer had done before: nothing happened a second time."
    ),
    "postroom_messages_kept": "Messages that this consumer stored, to be handled later.",
    "postroom_messages_failed": (
        "Tries of this consumer that failed and are made again, kept messages among them."
    ),
    "postroom_messages_dead": "Messages that this consumer made dead letters.",
    "postroom_messages_ignored": "Messages of this consumer of a type without a handler, ignored.",
    "postroom_messages_lost": (
        "Messages that became another consumer's before their end in this one."
    ),
    "postroom_messages_batched": (
        "Messages that this consumer did in one transaction with others."
    ),
    "postroom_messages_split": (
        "Messages whose batch this consumer rolled back, to handle each by itself."
    ),
    "postroom_consumer_connections_lost": (
        "How often the broker became unreachable for this consumer."
    ),
    "postroom_consumer_acknowledgements_refused": (
        "Acknowledgements of this consumer that the broker refused: offsets of Kafka."
    ),
    "postroom_messages_hashed_ids": (
        "Messages without an id that this consumer knew by their body alone."
    ),
}
MESSAGE_HISTOGRAMS: Final[Mapping[str, tuple[str, tuple[float, ...]]]] = {
    "postroom_handling_seconds": (
        "How long a try of this consumer took, whatever the verdict, from the message's turn on.",
        _SECONDS,
    ),
}
MESSAGE_GAUGES: Final[Mapping[str, str]] = {
    "postroom_consumer_up": "1 while this consumer runs, 0 while it starts or stops.",
    "postroom_consumer_connected": (
        "1 while this consumer runs and reaches its broker, 0 otherwise."
    ),
    "postroom_messages_in_flight": "Messages under way in this consumer, now.",
}


def documented() -> list[str]:
    """Return every name as it is served."""
    counters = [f"{name}_total" for name in (*COUNTERS, *TOTALS, *MESSAGE_COUNTERS)]
    return sorted([*counters, *HISTOGRAMS, *GAUGES, *MESSAGE_HISTOGRAMS, *MESSAGE_GAUGES])
