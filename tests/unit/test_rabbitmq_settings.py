"""The options of a RabbitMQ destination."""

from __future__ import annotations

import ssl

import pytest

from postroom.brokers.rabbitmq import RabbitBroker, RabbitSettings
from postroom.brokers.rabbitmq.connection import address
from postroom.brokers.rabbitmq.topology import binding_keys, queue_arguments
from postroom.errors import ConfigError
from postroom.model.url import Url
from postroom.registry import load_broker


def test_a_url_is_enough():
    broker = load_broker("amqp://localhost")
    assert isinstance(broker, RabbitBroker)
    assert broker.settings == RabbitSettings()
    assert isinstance(load_broker("amqps://localhost"), RabbitBroker)


@pytest.mark.req("S5.2")
def test_all_options_of_a_url():
    broker = load_broker(
        "amqp://u:p@h/v?exchange=orders&exchange_type=direct&routing_key=type&declare=on"
        "&queue=payments&queue_type=classic&bindings=order.created,order.paid&confirm_seconds=2.5"
        "&connect_seconds=3&heartbeat_seconds=5&app_id=shop"
    )
    assert broker.settings == RabbitSettings(
        exchange="orders",
        exchange_type="direct",
        routing_key="type",
        declare=True,
        queue="payments",
        queue_type="classic",
        bindings=("order.created", "order.paid"),
        confirm_seconds=2.5,
        connect_seconds=3.0,
        heartbeat_seconds=5.0,
        app_id="shop",
    )
    assert load_broker("amqp://h?exchange_from=topic").settings.exchange_from == "topic"


def test_options_in_python_and_in_the_url_are_put_together():
    broker = RabbitBroker("amqp://h?exchange=orders", app_id="shop", queue="q")
    assert broker.settings == RabbitSettings(exchange="orders", app_id="shop", queue="q")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("exchnge=x", r"unknown option 'exchnge'; did you mean 'exchange'\?"),
        ("exchange=a&exchange=b", r"'exchange' is given twice"),
        ("exchange=a&exchange_from=topic", "give exchange or exchange_from, not both"),
        ("exchange_from=type", "option 'exchange_from' must be one of topic"),
        ("exchange=caf%C3%A9", "Invalid value for exchange: use up to 127 letters"),
        ("exchange=" + "x" * 128, "Max length exceeded for exchange"),
        ("queue=a*b", "Invalid value for queue"),
        ("exchange_type=topik", r"unknown exchange_type 'topik'; did you mean 'topic'\?"),
        ("routing_key=typ", r"unknown routing_key 'typ'; did you mean 'type'\?"),
        ("routing_key=header:", "unknown routing_key 'header:'"),
        ("queue_type=stream", "one of classic, quorum"),
        ("declare=perhaps", "option 'declare' must be true or false"),
        ("confirm_seconds=0", "confirm_seconds must be more than 0"),
        ("connect_seconds=-1", "option 'connect_seconds' must be a number of seconds"),
        ("heartbeat_seconds=1.5", "a whole number of seconds"),
        ("cloudevents=", "cloudevents needs a source"),
        ("bindings=a", "bindings need declare=on, a queue and an exchange"),
        ("exchange=e&queue=q&declare=on&exchange_type=direct", "exchange needs the routing keys"),
        ("exchange_from=topic&queue=q", "cannot be bound when topics choose the exchange"),
        ("app_id=" + "x" * 256, "longer than 255 bytes"),
        ("exchange=e&queue=q&declare=on&bindings=" + "x" * 256, "longer than 255 bytes"),
        ("cafile=ca.pem", "certificates need an amqps"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(query, message):
    with pytest.raises(ConfigError, match=message):
        load_broker(f"amqp://h?{query}")


def test_wrong_options_in_python():
    with pytest.raises(ConfigError, match="unknown amqp option 'quue'; did you mean 'queue'"):
        RabbitBroker("amqp://h", quue="x")
    with pytest.raises(ConfigError, match="'queue' is given both in the URL and as an argument"):
        RabbitBroker("amqp://h?queue=a", queue="b")
    with pytest.raises(ConfigError, match="amqp:// or amqps://, not kafka:"):
        RabbitBroker("kafka://h")
    with pytest.raises(ConfigError, match="unknown exchange_from 'type'"):
        RabbitSettings(exchange_from="type")
    with pytest.raises(ConfigError, match="unknown queue_type 'stream'"):
        RabbitSettings(queue_type="stream")


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, ("#",)),
        ({"exchange_type": "fanout"}, ("",)),
        ({"exchange_type": "direct", "bindings": ("a", "b")}, ("a", "b")),
    ],
)
def test_what_a_queue_is_bound_with(options, keys):
    made = RabbitSettings(exchange="e", queue="q", declare=True, **options)
    assert binding_keys(made) == keys


def test_a_plug_in_exchange_type_is_let_through():
    assert RabbitSettings(exchange_type="x-consistent-hash").exchange_type == "x-consistent-hash"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://h", "amqp://guest:guest@h:5672//"),
        ("amqp://h/", "amqp://guest:guest@h:5672//"),
        ("amqp://h/%2F", "amqp://guest:guest@h:5672//"),
        ("amqp://h/shop", "amqp://guest:guest@h:5672/shop"),
        ("amqps://u:p%40ss@h:99/shop", "amqps://u:p%40ss@h:99/shop"),
        ("amqp://[::1]:5", "amqp://guest:guest@[::1]:5//"),
    ],
)
def test_the_address_for_the_driver(url, expected):
    parsed = Url.parse(url)
    made = address(parsed, parsed.hosts[0], RabbitSettings(heartbeat_seconds=7), "a name")
    assert str(made.with_query(None)) == expected
    assert dict(made.query) == {"heartbeat": "7", "name": "a name"}


def test_secrets_are_not_shown():
    broker = RabbitBroker("amqp://u:hunter2@h/v?exchange=orders")
    assert repr(broker) == "RabbitBroker('amqp://u:***@h/v?exchange=orders')"
    with pytest.raises(ConfigError) as caught:
        RabbitBroker("amqp://u:hunter2@h/v?nonsense=1")
    assert "hunter2" not in str(caught.value)


def test_tls_looks_at_certificates_unless_told_not_to():
    strict, lax = RabbitSettings().tls(), RabbitSettings(verify=False).tls()
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (lax.verify_mode, lax.check_hostname) == (ssl.CERT_NONE, False)


def test_a_certificate_that_is_not_there_is_told_at_once():
    with pytest.raises(ConfigError, match="cafile, certfile or keyfile cannot be used"):
        RabbitBroker("amqps://h?cafile=/nowhere/ca.pem")
    with pytest.raises(ConfigError, match="keyfile needs a certfile"):
        RabbitBroker("amqps://h?keyfile=/nowhere/key.pem")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {},
            {
                "x-queue-type": "quorum",
                "x-single-active-consumer": True,
                "x-delivery-limit": 2_147_483_647,
            },
        ),
        ({"single": False}, {"x-queue-type": "quorum", "x-delivery-limit": 2_147_483_647}),
        ({"queue_type": "classic", "single": False}, {"x-queue-type": "classic"}),
    ],
)
def test_what_a_queue_is_declared_with(given, expected):
    """R-C3: without the limit RabbitMQ 4 drops messages; -1 makes RabbitMQ 3 drop them at once."""
    assert queue_arguments(RabbitSettings(queue="q", **given)) == expected
