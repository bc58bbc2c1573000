"""Settings: flags before variables before a file before defaults, and errors that name the place."""

from __future__ import annotations

import pytest

from postroom.cli.configuration import (
    CONSUMER_SETTINGS,
    SETTINGS,
    Configuration,
    find_file,
    load,
    settings_of,
)
from postroom.errors import ConfigError
from postroom.retry import Constant, Linear
from postroom.settings import ConsumerSettings, RelaySettings

FILE = """\
store = "postgresql://app:s3cret@db/shop"
batch_size = 200
poll_seconds = 2

[[relay]]
stream = "orders"
broker = "kafka://k:9092"

[[relay]]
stream = "mail"
broker = "amqp://u:s3cret@r/vhost"
batch_size = 10
max_attempts = 9
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "postroom.toml").write_text(FILE)
    return tmp_path


def configuration(folder, **environment):
    return load(None, environment, folder)


def test_defaults_are_those_of_the_documents(tmp_path):
    found = configuration(tmp_path)
    (plan,) = found.relays({})
    assert plan.settings == RelaySettings()
    assert plan.settings.batch_size == 100
    assert plan.settings.poll_seconds == 1.0
    assert plan.settings.retry.max_attempts == 5
    assert {setting.source for setting in plan.values.values()} == {"default"}
    assert found.get("log_level") == ("info", "default")


def test_every_field_of_the_relay_settings_can_be_set():
    known = {name for name, setting in SETTINGS.items() if setting.of_relay}
    retry = {"max_attempts", "on_exhausted", "backoff", "backoff_seconds", "max_backoff_seconds"}
    assert known - retry - {"broker", "broker_password_file"} == set(
        RelaySettings.__dataclass_fields__
    ) - {"retry"}


def test_flags_before_variables_before_the_file(folder):
    found = configuration(folder, POSTROOM_POLL_SECONDS="3", POSTROOM_LEASE_SECONDS="30")
    plan, _ = found.relays({"lease_seconds": "40", "batch_size": None})
    assert plan.values["lease_seconds"] == (40.0, "--lease-seconds")
    assert plan.values["poll_seconds"] == (3.0, "POSTROOM_POLL_SECONDS")
    assert plan.values["batch_size"] == (200, f"{folder}/postroom.toml:2")
    assert plan.values["groups"] == (2, "default")


def test_sections_have_streams_and_brokers_of_their_own(folder):
    found = configuration(folder, POSTROOM_BROKER="null:", POSTROOM_STREAM="other")
    orders, mail = found.relays({})
    assert (orders.settings.stream, str(orders.broker)) == ("orders", "kafka://k:9092")
    assert (mail.settings.stream, str(mail.broker)) == ("mail", "amqp://u:***@r/vhost")
    assert (orders.settings.batch_size, mail.settings.batch_size) == (200, 10)
    assert (orders.settings.retry.max_attempts, mail.settings.retry.max_attempts) == (5, 9)
    assert mail.values["batch_size"].source == f"{folder}/postroom.toml:12"


def test_a_stream_chooses_its_section(folder):
    found = configuration(folder)
    (mail,) = found.relays({"stream": "mail"})
    assert mail.settings.stream == "mail"
    with pytest.raises(ConfigError, match="no section for 'post'; its streams are orders, mail"):
        found.relays({"stream": "post"})
    with pytest.raises(ConfigError, match="select one stream with --stream"):
        found.relays({"broker": "null:"})
    (mail,) = found.relays({"stream": "mail", "broker": "null:"})
    assert str(mail.broker) == "null:"


def test_a_batch_above_the_usual_maximum_raises_it(tmp_path):
    (plan,) = configuration(tmp_path).relays({"batch_size": "5000"})
    assert plan.settings.max_batch_size == 5000


def test_backoff_by_name(tmp_path):
    environment = {"POSTROOM_BACKOFF": "linear", "POSTROOM_BACKOFF_SECONDS": "2"}
    (plan,) = configuration(tmp_path, **environment).relays({})
    assert plan.settings.retry.backoff == Linear(2.0, 300.0)
    (plan,) = configuration(tmp_path, POSTROOM_BACKOFF="CONSTANT").relays({})
    assert plan.settings.retry.backoff == Constant(0.5)


def test_pyproject_is_the_second_choice(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.postroom]\nstore = "sqlite:///p.db"\n')
    found = configuration(tmp_path)
    assert found.get("store").source == f"{tmp_path}/pyproject.toml:2"
    (tmp_path / "postroom.toml").write_text("batch_size = 7\n")
    assert configuration(tmp_path).get("store").value is None


def test_a_pyproject_of_somebody_else_is_no_configuration(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert configuration(tmp_path).source.path is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nbatchsize = 3", ":2: unknown key 'batchsize'; did you mean 'batch_size'?"),
        ("xyzzy = 3", ":1: unknown key 'xyzzy'; `postroom config show` lists all keys"),
        ("batch_size = 'x'", ":1: batch_size must be a whole number, not 'x'"),
        ("batch_size = true", ":1: batch_size must be a whole number, not True"),
        ("batch_size = 1.5", ":1: batch_size must be a whole number, not 1.5"),
        ("poll_seconds = '1'", ":1: poll_seconds must be a number of seconds, not '1'"),
        ("poll_seconds = -1", ":1: poll_seconds must be more than 0, not -1.0"),
        ("backoff = 'slow'", ":1: backoff must be one of exponential, linear, constant, not 'slow'"),
        ("backoff_seconds = 900", ":1: backoff: must be 0 < base <= maximum"),
        ("stream = ''", ":1: stream is empty"),
        ("store = 'app.db'", ":1: not a URL"),
        ("store = 5", ":1: a URL must be text"),
        ("[relay]\nstream = 'a'", ":1: write [[relay]] with double brackets"),
        ("[[relay]]\nstrem = 'a'", ":2: unknown key 'strem'; did you mean 'stream'?"),
        ("[[relay]]\nlog_level = 'info'", ":2: 'log_level' applies to all relays; move it above"),
        ("[[relay]]\n[[relay]]\nbatch_size = 0", ":3: batch_size must be more than 0, not 0"),
        ("[[relay]]\nstream = 'a'\n[[relay]]\nstream = 'a'", ":2: stream 'a' occurs in two [[relay]]"),
        ("batch_size = ", " is not valid TOML: "),
        ("[tool]\nx = 1", ":1: unknown key 'tool'"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_file_is_said_with_its_line(tmp_path, text, said):
    (tmp_path / "postroom.toml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        configuration(tmp_path).relays({})
    assert f"{tmp_path}/postroom.toml" in str(raised.value)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"POSTROOM_BATCHSIZE": "3"}, "unknown variable POSTROOM_BATCHSIZE; did you mean POSTROOM_BATCH_SIZE?"),
        ({"POSTROOM_BATCH_SIZE": "many"}, "POSTROOM_BATCH_SIZE: batch_size must be a whole number, not 'many'"),
        ({"POSTROOM_POLL_SECONDS": "nan"}, "POSTROOM_POLL_SECONDS: poll_seconds must be a number of seconds, not 'nan'"),
        ({"POSTROOM_BATCH_SIZE": "-1"}, "POSTROOM_BATCH_SIZE: batch_size must be more than 0, not -1"),
        ({"POSTROOM_LOG_LEVEL": "loud"}, "POSTROOM_LOG_LEVEL: log_level must be one of debug, info"),
        ({"POSTROOM_STORE": "s3cret"}, "POSTROOM_STORE: not a URL"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_variable_is_said_with_its_name(tmp_path, variables, said):
    with pytest.raises(ConfigError) as raised:
        configuration(tmp_path, **variables).relays({})
    assert said in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_variables_of_others_and_empty_ones_are_left_alone(tmp_path):
    found = configuration(
        tmp_path, POSTROOM_TEST_POSTGRES_URL="x", POSTROOM_DEBUG="1", POSTROOM_STREAM="", HOME="/"
    )
    assert found.get("stream") == ("main", "default")


def test_a_wrong_flag_names_the_flag(tmp_path):
    with pytest.raises(ConfigError, match="--max-attempts: max_attempts must be 1 or more, not 0"):
        configuration(tmp_path).relays({"max_attempts": "0"})


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot read .*: No such file"):
        find_file(tmp_path / "none.toml", tmp_path)
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        find_file(tmp_path / "bad.toml", tmp_path)


def test_consumers_have_sections_of_their_own(tmp_path):
    (tmp_path / "postroom.toml").write_text(
        '[[consumer]]\nsource = "amqp://h/?queue=q"\nhandlers = "handlers:app:handlers"\n'
        'mode = "durable"\n'
    )
    found = configuration(tmp_path)
    (consumer,) = found.consumers
    assert consumer["mode"] == ("durable", f"{tmp_path}/postroom.toml:4")
    assert consumer["max_attempts"] == (5, "default")
    assert consumer["source"].shown == "amqp://h/?queue=q"
    assert found.relays({}) == []  # no broker: nothing to relay to
    (plan,) = found.relays({"broker": "null:"})
    assert str(plan.broker) == "null:"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[consumer]]\nsource = 'memory:'", ": [[consumer]] 1 needs 'handlers'"),
        ("[consumer]\nsource = 'memory:'", ":1: write [[consumer]] with double brackets"),
        ("[[consumer]]\nbatch_size = 3", ":2: unknown key 'batch_size'"),
        ("[[consumer]]\nmode = 'fast'", ":2: mode must be one of direct, durable, not 'fast'"),
        ("[[consumr]]\nmode = 'fast'", ":1: unknown key 'consumr'; did you mean 'consumer'?"),
    ],
)
def test_what_is_wrong_with_a_consumer(tmp_path, text, said):
    (tmp_path / "postroom.toml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        configuration(tmp_path)
    assert said in str(raised.value)


def test_the_defaults_of_consumers_are_those_of_their_settings():
    for name, known in CONSUMER_SETTINGS.items():
        if name not in ("source", "source_password_file", "handlers", "max_attempts"):
            assert known.default == getattr(ConsumerSettings(), name)


def test_secrets_are_masked(folder):
    found = configuration(folder)
    shown = {**found.process({}), **found.relays({})[1].values}
    assert shown["store"].shown == "postgresql://app:***@db/shop"
    assert "s3cret" not in str([setting.shown for setting in shown.values()])
    assert settings_of(found.relays({})[0].values).stream == "orders"
    assert isinstance(found, Configuration)
