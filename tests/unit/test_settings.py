"""The settings of a relay: the defaults that the documents expect, and what makes no sense."""

from __future__ import annotations

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import ConfigError, PostroomError
from postroom.retry import Exponential, RetryPolicy
from postroom.settings import RelaySettings
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore


@pytest.mark.req("S4.3", "S4.5")
def test_the_defaults():
    settings = RelaySettings()
    assert settings.stream == "main"
    assert settings.batch_size == 100
    assert settings.poll_seconds == 1.0
    assert settings.retry.max_attempts == 5
    assert isinstance(settings.retry.backoff, Exponential)
    assert settings.retry.on_exhausted == "bury"
    assert settings.max_batch_size == 1_000
    assert settings.keep_done_seconds == 86_400.0


@pytest.mark.req("S4.3", "S4.8")
def test_settings_are_given_whole_or_by_name():
    retry = RetryPolicy(max_attempts=2)
    relay = Relay(MemoryStore(), MemoryBroker(), batch_size=500, poll_seconds=0.5, retry=retry)
    assert relay.settings == RelaySettings(batch_size=500, poll_seconds=0.5, retry=retry)
    whole = RelaySettings(stream="mail", batch_size=7)
    assert Relay(MemoryStore(), MemoryBroker(), whole).settings is whole
    both = Relay(MemoryStore(), MemoryBroker(), whole, batch_size=8).settings
    assert (both.stream, both.batch_size) == ("mail", 8)
    assert whole.batch_size == 7


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("batchsize", "did you mean 'batch_size'?"),
        ("poll_interval", "unknown relay setting 'poll_interval'"),
        ("lease_second", "did you mean 'lease_seconds'?"),
        ("xyzzy", "unknown relay setting 'xyzzy'"),
    ],
)
def test_an_unknown_setting_suggests_the_nearest(name, hint):
    with pytest.raises(ConfigError) as raised:
        Relay(MemoryStore(), MemoryBroker(), **{name: 1})
    assert hint in str(raised.value)
    assert repr(name) in str(raised.value)


@pytest.mark.parametrize(
    "name",
    [
        "batch_size", "max_batch_size", "max_batch_bytes", "poll_seconds", "lease_seconds",
        "prune_seconds", "publish_seconds", "stop_seconds", "linger_seconds", "suspect_limit",
        "misconfigured_seconds", "outage_seconds", "max_outage_seconds",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_what_must_be_more_than_nothing(name, value):
    with pytest.raises(ConfigError, match=f"^{name} must be more than 0, not {value}"):
        RelaySettings(**{name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keep_done_seconds": -1}, "keep_done_seconds must be 0 or more, not -1"),
        (
            {"batch_size": 10, "max_batch_size": 9},
            r"max_batch_size \(9\) must not be below batch_size \(10",
        ),
        ({"groups": 3}, "groups must be 1, 2, 4 or 8, not 3"),
        ({"groups": 0}, "groups"),
    ],
)
def test_what_makes_no_sense(given, message):
    with pytest.raises(ConfigError, match=message):
        RelaySettings(**given)


def test_keeping_done_events_for_no_time_is_a_setting():
    assert RelaySettings(keep_done_seconds=0).keep_done_seconds == 0


@pytest.mark.parametrize("stream", ["", "a\x00b", "x" * 65, 7])
def test_the_name_of_a_stream_is_checked(stream):
    with pytest.raises(PostroomError, match="stream"):
        RelaySettings(stream=stream)


def test_settings_cannot_be_changed_under_a_running_relay():
    with pytest.raises(AttributeError):
        RelaySettings().batch_size = 3


def test_store_and_broker_may_be_urls(tmp_path):
    relay = Relay(f"sqlite:///{tmp_path}/app.db", "memory:")
    assert isinstance(relay.store, SqliteStore)
    assert isinstance(relay.broker, MemoryBroker)


@pytest.mark.parametrize(
    ("store", "broker", "named"),
    [("sqlit:///app.db", "memory:", "sqlite"), ("memory:", "memry:", "memory")],
)
def test_an_unknown_scheme_lists_the_known_ones(store, broker, named):
    with pytest.raises(ConfigError, match=named):
        Relay(store, broker)


@pytest.mark.parametrize("name", ["batch_size", "poll_seconds", "keep_done_seconds"])
@pytest.mark.parametrize("value", [True, False, "5", None])
def test_a_number_is_no_yes_or_no_and_no_text(name, value):
    with pytest.raises(ConfigError, match=f"^{name} must be a number"):
        RelaySettings(**{name: value})
