"""All metrics: names, help texts and labels.

`this relay` and `this consumer` run in the scraped process; values of `the store` are the same in
every process. Counters are exported with the suffix `_total`.
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
        "Events that this relay published, counted per attempt, whatever the outcome.",
        (*_PLACE, "topic"),
    ),
    "postroom_events_confirmed": (
        "Events that this relay settled as done after the destination confirmed them.",
        (*_PLACE, "topic"),
    ),
    "postroom_events_failed": (
        "Attempts of this relay that were not confirmed, by verdict, including outages.",
        (*_PLACE, "topic", "verdict"),
    ),
    "postroom_events_dead": ("Events that this relay turned into dead letters.", _PLACE),
    "postroom_events_expired": ("Events that were not sent before their `deliver_by`.", _PLACE),
    "postroom_events_held": (
        "Events that this relay did not send because their topic is paused or at its limit.",
        _PLACE,
    ),
    "postroom_events_repeated": (
        "Events confirmed to this relay but not settled, which are therefore sent again.",
        _PLACE,
    ),
    "postroom_events_fenced": (
        "Outcomes that this relay discarded because it had lost their lane.",
        _PLACE,
    ),
    "postroom_events_vanished": (
        "Events that this relay had read and the database lost, for example in a fail-over.",
        _PLACE,
    ),
    "postroom_effects_lost": (
        "Events handled again because the database lost the committed effects of their handlers.",
        _PLACE,
    ),
    "postroom_alarms": ("Alarms of this relay that need an operator.", _PLACE),
    "postroom_store_errors": ("Failed calls of this relay to the store.", _PLACE),
}
TOTALS: Final[Mapping[str, str]] = {
    "postroom_events_added": (
        "Events passed to add() in this process, including those of rolled-back transactions."
    ),
    "outbox_new": (
        "Events passed to add() in this process, including those of rolled-back transactions."
    ),
    "outbox_done": "Events that this relay settled as done.",
    "outbox_failed": "Events that this relay settled as failed or dead, counted per attempt.",
}
HISTOGRAMS: Final[Mapping[str, tuple[str, tuple[float, ...]]]] = {
    "postroom_delivery_lag_seconds": (
        "Time from when an event was due until this relay settled it as done.",
        _LAG,
    ),
    "postroom_batch_size": ("Events per publish call of this relay.", _SIZES),
    "postroom_publish_seconds": ("Duration of publish calls of this relay.", _SECONDS),
    "postroom_settle_seconds": (
        "Duration of settles of this relay with at least one done event.",
        _SECONDS,
    ),
}
GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "postroom_up": ("1 while this relay runs, 0 while it starts or stops.", ("stream",)),
    "postroom_paused": (
        "1 while the stream, topic or consumer is paused, as this process sees it.",
        ("kind", "name"),
    ),
    "postroom_operations": (
        "Unfinished operations in the store by state, as this process saw them last.",
        ("state",),
    ),
    "postroom_limit_per_second": (
        "The limit of all relays of the stream or topic together, as this process sees it.",
        ("kind", "name"),
    ),
    "postroom_limit_in_flight": (
        "The limit of all relays of the stream or topic together, as this process sees it.",
        ("kind", "name"),
    ),
    "postroom_store_up": (
        "1 if the store answers this relay and accepts its heartbeats.",
        ("stream",),
    ),
    "postroom_notifications_up": (
        "1 while LISTEN or NOTIFY (part listener or notifier) works here, 0 while relays poll.",
        ("part",),
    ),
    "postroom_events": ("Events in the store by state, last sampled value.", ("stream", "state")),
    "postroom_pending_events": (
        "Events in the store waiting to be sent (pending or failed), last sampled value.",
        ("stream",),
    ),
    "postroom_oldest_age_seconds": (
        "Age of the oldest event in the store, due or waiting for a retry, last sampled value.",
        ("stream",),
    ),
    "outbox_lag_seconds": (
        "Age of the oldest event in the store, due or waiting for a retry, last sampled value.",
        ("stream",),
    ),
    "postroom_blocked_keys": ("Keys in the store blocked by a failed event.", ("stream",)),
    "postroom_lanes_free": ("Lanes in the store that no live relay holds.", ("stream",)),
    "postroom_relays": ("Live relays of the stream, according to the store.", ("stream",)),
    "postroom_handler_sets": (
        (
            "Different sets of handlers that live relays of the stream run; more than 1 is a "
            "deployment, or two services with one name."
        ),
        ("stream",),
    ),
    "postroom_in_flight_events": ("Events currently in flight in this relay.", ("stream",)),
    "outbox_in_flight": ("Events currently in flight in this relay.", ("stream",)),
    "postroom_lanes_owned": ("Lanes that this relay currently holds.", ("stream",)),
    "postroom_breaker_open": (
        "1 while the destination is unreachable for this relay.",
        _PLACE,
    ),
}

MESSAGE_COUNTERS: Final[Mapping[str, str]] = {
    "postroom_messages_received": "Messages that this consumer received from its source.",
    "postroom_messages_handled": (
        "Messages whose handlers committed in this consumer, including stored messages."
    ),
    "postroom_messages_repeated": (
        "Duplicate messages that this consumer skipped because it had handled them before."
    ),
    "postroom_messages_stored": "Messages that this consumer stored in order to handle them later.",
    "postroom_messages_failed": (
        "Failed attempts of this consumer that are retried, including stored messages."
    ),
    "postroom_messages_dead": "Messages that this consumer turned into dead letters.",
    "postroom_messages_ignored": (
        "Messages that this consumer ignored because their type has no handler."
    ),
    "postroom_messages_lost": (
        "Messages reassigned to another consumer before this one had finished them."
    ),
    "postroom_messages_batched": (
        "Messages that this consumer handled in a transaction shared with others."
    ),
    "postroom_messages_split": (
        "Messages whose batch this consumer rolled back in order to handle each individually."
    ),
    "postroom_consumer_connections_lost": (
        "Times that the broker became unreachable for this consumer."
    ),
    "postroom_consumer_acknowledgements_refused": (
        "Acknowledgements (offset commits) of this consumer that the broker refused."
    ),
    "postroom_messages_hashed_ids": (
        "Messages without an id that this consumer identified by a hash of their body."
    ),
}
MESSAGE_HISTOGRAMS: Final[Mapping[str, tuple[str, tuple[float, ...]]]] = {
    "postroom_handling_seconds": (
        "Duration of attempts of this consumer, whatever the verdict, without queueing.",
        _SECONDS,
    ),
}
MESSAGE_GAUGES: Final[Mapping[str, str]] = {
    "postroom_consumer_up": "1 while this consumer runs, 0 while it starts or stops.",
    "postroom_consumer_connected": (
        "1 while this consumer runs, its broker is reachable and its queue or topics exist."
    ),
    "postroom_messages_in_flight": "Messages currently in flight in this consumer.",
}


def documented() -> list[str]:
    """Return every name as exported."""
    counters = [f"{name}_total" for name in (*COUNTERS, *TOTALS, *MESSAGE_COUNTERS)]
    return sorted([*counters, *HISTOGRAMS, *GAUGES, *MESSAGE_HISTOGRAMS, *MESSAGE_GAUGES])
