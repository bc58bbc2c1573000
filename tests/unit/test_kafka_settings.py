"""What can be set about Kafka, and what never shows."""

from __future__ import annotations

import logging

import pytest

from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.kafka.log import LogLines
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.errors import ConfigError
from postroom.registry import load_broker


def from_url(text):
    return KafkaSettings.read(text, {})


# -- from a URL -------------------------------------------------------------------------------
def test_a_plain_url_has_the_defaults():
    settings = from_url("kafka://localhost")
    assert settings == KafkaSettings(servers="localhost:9092")
    assert (settings.topic, settings.key, settings.compression) == (None, "key", "snappy")
    assert (settings.create_topics, settings.delivery, settings.cloudevents) == (
        False, "idempotent", None,
    )  # fmt: skip


@pytest.mark.req("S1.5", "S4.8")
def test_every_option_of_a_url():
    settings = from_url(
        "kafka://h1:9092,h2,[::1]:9094/?topic=orders&key=id&compression=zstd&create_topics=true"
        "&partitions=6&replication=3&linger_seconds=0.02&batch_bytes=100000&publish_seconds=8"
        "&answer_seconds=2&delivery=transactional&transactional_prefix=shop"
        "&cloudevents=/shop/orders&client.rack=a&socket.keepalive.enable=true"
    )
    assert settings.servers == "h1:9092,h2:9092,[::1]:9094"
    assert settings.config == {"client.rack": "a", "socket.keepalive.enable": "true"}
    assert (settings.topic, settings.key, settings.compression) == ("orders", "id", "zstd")
    assert (settings.create_topics, settings.partitions, settings.replication) == (True, 6, 3)
    assert (settings.linger_seconds, settings.batch_bytes) == (0.02, 100_000)
    assert (settings.publish_seconds, settings.answer_seconds) == (8.0, 2.0)
    assert (settings.delivery, settings.transactional_prefix) == ("transactional", "shop")
    assert settings.cloudevents == "/shop/orders"


def test_user_and_password_mean_sasl_over_tls():
    settings = from_url("kafka://me:p%40ss@h?sasl.mechanism=SCRAM-SHA-512")
    assert settings.config == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": "p@ss",
    }


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("kafka://", "a host is missing"),
        ("kafka://h/orders", "without a path"),
        ("kafka+ssl://h", "without a path"),
        ("kafka://h?topics=x", "unknown option 'topics'; did you mean 'topic'?"),
        ("kafka://h?compression=brotli", "one of snappy, lz4, zstd, gzip, none"),
        ("kafka://h?key=aggregate", "one of key, id"),
        ("kafka://h?partitions=many&create_topics=1", "a whole number"),
        ("kafka://h?partitions=3", "need create_topics"),
        ("kafka://h?publish_seconds=0", "publish_seconds must be more than 0"),
        ("kafka://h?topic=a&topic=b", "given twice"),
        ("kafka://h?topic=", "topic"),
        ("kafka://h?cloudevents=", "cloudevents"),
        ("kafka://h?no.such.setting=1", 'No such configuration property: "no.such.setting"'),
        ("kafka://h?socket.timeout.ms=soon", "socket.timeout.ms"),
        ("kafka://h?enable.idempotence=false", "enable.idempotence cannot be set here"),
        ("kafka://h?acks=1", "unknown option 'acks'"),
        ("kafka://h?message.timeout.ms=5", "use publish_seconds"),
        ("kafka://h?transactional.id=x", "use delivery='transactional'"),
        ("kafka://h?ssl.ca.location=/no/such/file&security.protocol=SSL", "ssl.ca.location"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(url, problem):
    with pytest.raises(ConfigError) as raised:
        load_broker(url)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "aggregate"},
        {"compression": "brotli"},
        {"delivery": "exactly-once"},
        {"linger_seconds": -1},
        {"linger_seconds": float("nan")},
        {"batch_bytes": 0},
        {"topic": "a\x00b"},
        {"config": {"acks": 1}},
        {"config": {"retries": 1}},
        {"config": {"on_delivery": print}},
    ],
)
def test_what_makes_no_sense_in_python(options):
    with pytest.raises(ConfigError, match="Kafka: "):
        KafkaBroker("kafka://localhost:9092", **options)


@pytest.mark.parametrize("servers", ["", "  ", None, "localhost:9092", "kafka:", "amqp://h"])
def test_what_is_no_kafka_url(servers):
    with pytest.raises(ConfigError, match="URL"):
        KafkaBroker(servers)


# -- K1 ---------------------------------------------------------------------------------------
@pytest.mark.req("S1.5")
@pytest.mark.promise("K1")
def test_what_every_producer_has():
    config = KafkaSettings(servers="h:1", config={"client.rack": "a"}).producer()
    assert {
        "enable.idempotence": True,
        "acks": "all",
        "enable.gapless.guarantee": True,
        "message.timeout.ms": 0,
        "partitioner": "murmur2_random",
        "compression.type": "snappy",
        "allow.auto.create.topics": False,
        "bootstrap.servers": "h:1",
        "client.rack": "a",
    }.items() <= config.items()


def test_the_partitioner_may_be_another_where_a_topic_has_one():
    settings = KafkaSettings(servers="h:1", config={"partitioner": "consistent_random"})
    assert settings.producer()["partitioner"] == "consistent_random"


@pytest.mark.promise("K2")
def test_how_messages_are_collected():
    settings = KafkaSettings(servers="h:1", batch_bytes=50_000, linger_seconds=0.002)
    together = settings.batching(18_000, one_by_one=False)
    assert together == {"batch.size": 18_000, "linger.ms": 2.0}
    assert settings.batching(10**6, one_by_one=False)["batch.size"] == 50_000
    assert settings.batching(10**6, one_by_one=True) == {
        "batch.num.messages": 1, "batch.size": 50_000, "linger.ms": 0,
    }  # fmt: skip


@pytest.mark.promise("K6")
def test_a_transactional_producer():
    config = KafkaSettings(servers="h:1", publish_seconds=10).transactional("shop-7")
    assert config["transactional.id"] == "shop-7"
    assert config["transaction.timeout.ms"] == 20_000
    assert (config["enable.idempotence"], config["acks"]) == (True, "all")
    assert "message.timeout.ms" not in config


# -- secrets ----------------------------------------------------------------------------------
SECRETS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "me",
    "sasl.password": "hunter22",
    "ssl.key.password": "opensesame",
}


def test_a_printed_broker_shows_no_secrets():
    broker = KafkaBroker("kafka://h:1", topic="t", config=SECRETS)
    assert repr(broker) == (
        "KafkaBroker('h:1', topic='t', config={'security.protocol': 'SASL_SSL', "
        "'sasl.mechanism': 'PLAIN', 'sasl.username': 'me', 'sasl.password': '***', "
        "'ssl.key.password': '***'})"
    )
    assert "hunter22" not in str(load_broker("kafka://me:hunter22@h"))


def test_lines_of_the_log_show_no_secrets(caplog):
    caplog.set_level(logging.DEBUG)
    lines = LogLines(KafkaSettings(servers="h:1", config=SECRETS))
    lines.log(
        logging.DEBUG, "%s [%s] %s", "CONF", "p-1", "sasl.password = hunter22, opensesame 100%"
    )
    lines.log(logging.CRITICAL, "%s [%s] %s", "FATAL", "p-1", "gap")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("DEBUG", "CONF [p-1] sasl.password = ***, *** 100%"),
        ("WARNING", "FATAL [p-1] gap"),
    ]


def test_a_secret_that_only_its_value_tells_is_not_shown_either(caplog):
    caplog.set_level(logging.DEBUG)
    config = {"client.rack": "http://:hunter22@proxy"}
    LogLines(KafkaSettings(servers="h:1", config=config)).log(
        logging.DEBUG, "rack http://:hunter22@proxy is away"
    )
    assert [record.getMessage() for record in caplog.records] == ["rack *** is away"]
    assert "hunter22" not in repr(KafkaBroker("kafka://h:1", config=config))


def test_an_error_of_the_settings_shows_no_secrets():
    secrets = {"security.protocol": "SSL", "ssl.key.pem": "s3cr3t" * 3}
    with pytest.raises(ConfigError, match="Kafka: ") as raised:
        KafkaBroker("kafka://h:1", config=secrets)
    assert "s3cr3t" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
